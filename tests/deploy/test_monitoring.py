"""The dashboard and an alert for real: Prometheus scrapes a service that runs, and Alertmanager tells a webhook."""

import json
import math
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.endpoints import TASK_ENDPOINTS
from tests.support.fleet import Fleet, fleet, frozen, soon
from tests.support.servers import http_server
from tests.support.tiny import write_tiny_bundles

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"
BOARD = json.loads((DEPLOY / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
PROGRAMS = ("prometheus", "prometheus-alertmanager")
LEFT_OUT, KEY = "stars", "key-of-the-shop"
NEEDS_A_FAULT = {
    "1 - bert_model_ready": "a model whose engine fails while others answer",
    "bert_model_load_failed": "a version that comes while the service runs and cannot be served",
    "bert_model_fallback": "a processor that gives other results than the one of the export",
}
"""Parts of queries that have an answer only with a fault that this service does not have."""
SLOW, SLOW_S, SLOW_REQUESTS = "BertSlow", 6.0, 20
"""The alert on latency, seconds of requests that raise it, and how many: over 0.05 a second of five minutes."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)),
        reason=f"Prometheus is not installed: apt-get install {' '.join(PROGRAMS)}",
    ),
]


@dataclass(frozen=True)
class Monitored:
    service: Fleet
    prometheus: str
    """Address of Prometheus."""
    told: list[dict[str, Any]]
    """What the webhook got from Alertmanager."""

    def query(self, expression: str) -> list[dict[str, Any]]:
        question = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query?{question}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(*command: str | Path) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def webhook(told: list[dict[str, Any]]) -> Iterator[str]:
    """Keep each alert that comes in."""

    async def respond(body: bytes) -> tuple[int, bytes]:
        told.extend(json.loads(body)["alerts"])
        return 200, b""

    with http_server(respond) as url:
        yield url


@contextmanager
def traffic(service: Fleet) -> Iterator[None]:
    """Send requests of every task, and some that fail, until the block ends."""
    ended = threading.Event()

    def send() -> None:
        key = {"x_api_key": KEY}
        while not ended.is_set():
            for each in TASK_ENDPOINTS:
                service.post(each.path, each.sent, **key)
            service.post("/classify", {"text": "a film", "model": LEFT_OUT}, **key)
            service.post("/classify", {"text": "the film " * 100, "truncate": True}, **key)
            service.post("/ner", {"text": "the " * 900}, **key)
            time.sleep(0.05)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """A service, one of whose models is left out, with the shipped rules and everything asked every second.

    SLOW waits a second and not ten minutes.
    """
    folder = tmp_path_factory.mktemp("monitoring")
    write_tiny_bundles(folder / "bundles")
    graph = folder / "bundles" / LEFT_OUT / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:100])
    (folder / "keys.yaml").write_text(yaml.safe_dump({"shop": {"key": KEY}}))
    told, prometheus, alertmanager = list[dict[str, Any]](), free_port(), free_port()
    options = ("--default-models", "classification=mood", "--max-queue-tokens", "512")
    keys = ("--api-keys-file", str(folder / "keys.yaml"))
    with ExitStack() as stack:
        service = stack.enter_context(
            fleet("--bundles", str(folder / "bundles"), *options, *keys, frontends=1)
        )
        hook = stack.enter_context(webhook(told))
        stack.enter_context(traffic(service))
        scraping = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        scraping["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
        (slow,) = (rule for group in rules["groups"] for rule in group["rules"] if rule.get("alert") == SLOW)
        slow["for"] = "1s"
        (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
        scraping["rule_files"] = [str(folder / "alerts.yml")]
        scraping["scrape_configs"][0]["static_configs"][0]["targets"] = [service.url.removeprefix("http://")]
        scraping["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [
            f"127.0.0.1:{alertmanager}"
        ]
        telling = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text())
        telling["route"]["group_wait"] = "1s"
        for receiver in telling["receivers"]:
            receiver["webhook_configs"] = [{"url": f"{hook}/{receiver['name']}"}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(scraping))
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(telling))
        alertmanager_options = (f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts")
        alertmanager_listens = (f"--web.listen-address=127.0.0.1:{alertmanager}", "--cluster.listen-address=")
        stack.enter_context(running(PROGRAMS[1], *alertmanager_options, *alertmanager_listens))
        prometheus_options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        stack.enter_context(
            running(PROGRAMS[0], *prometheus_options, f"--web.listen-address=127.0.0.1:{prometheus}")
        )
        url = f"http://127.0.0.1:{prometheus}"
        soon(lambda: answers(f"{url}/-/ready"))
        yield Monitored(service, url, told)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def test_every_query_of_the_dashboard_returns_data(monitored: Monitored) -> None:
    left = {
        target["expr"].replace("$__rate_interval", "30s").replace("$job", "bert"): panel["title"]
        for panel in PANELS
        for target in panel["targets"]
        if not any(part in target["expr"] for part in NEEDS_A_FAULT)
    }
    assert len(left) > 30

    def all_answered() -> bool:
        for expression in list(left):
            values = [float(sample["value"][1]) for sample in monitored.query(expression)]
            if any(map(math.isfinite, values)):
                del left[expression]
        return not left

    try:
        soon(all_answered)
    except AssertionError:
        pytest.fail(f"no data: {left}")


def test_a_bundle_that_is_left_out_is_told_to_a_webhook(monitored: Monitored) -> None:
    soon(lambda: bool(monitored.told))
    (alert,) = (each for each in monitored.told if each["labels"]["alertname"] == "BertModelLeftOut")
    assert (alert["status"], alert["labels"]["model"]) == ("firing", LEFT_OUT)
    assert alert["labels"]["severity"] == "ticket"
    assert LEFT_OUT in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"].endswith("#bertmodelleftout")


def test_requests_that_become_slow_are_told_to_a_webhook(monitored: Monitored) -> None:
    service = monitored.service
    with ThreadPoolExecutor(SLOW_REQUESTS) as pool, frozen(service.engine):
        asked = [
            pool.submit(service.post, "/classify", {"text": "a film"}, x_api_key=KEY)
            for _ in range(SLOW_REQUESTS)
        ]
        time.sleep(SLOW_S)
    assert {each.result().status for each in asked} == {200}

    def of_mood() -> list[dict[str, Any]]:
        told = [each for each in monitored.told if each["labels"]["alertname"] == SLOW]
        return [each for each in told if "to mood of bert" in each["annotations"]["summary"]]

    soon(lambda: bool(of_mood()))
    alert = of_mood()[0]
    assert (alert["status"], alert["labels"]["severity"]) == ("firing", "page")
