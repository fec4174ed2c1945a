"""The example for Ray Serve on real clusters: a node is killed under load, replicas come and go with the load.

Runs with BERT_RAY_PYTHON, as test_ray_example.py does.
"""

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serve.load.process_tree import kill, tree
from benchmarks.serve.load.ray_nodes import head_node, ray_serve, two_nodes
from benchmarks.serve.load.running import BaselineError
from tests.support.live import Client, eventually, serving
from tests.support.mixed_requests import mixed_requests, same
from tests.support.tiny import SPECS, WORDS, write_tiny_bundle, write_tiny_bundles

PYTHON = os.environ.get("BERT_RAY_PYTHON", "")
REPLICA = b"ServeReplica:default:Replica"
CLIENTS = 8
Sent = tuple[str, dict[str, Any]]
DOCUMENTS: Sent = ("/ner", {"text": [" ".join(WORDS * 20)] * 8})
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="BERT_RAY_PYTHON names no Python: `make clients` sets it"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="addresses of two nodes on one machine, and /proc: Linux"
    ),
]


@dataclass
class Traffic:
    """Answers to clients, each of which sends one request after the other."""

    answers: list[tuple[Sent, int, Any, int]] = field(default_factory=list)
    """Request, status, body, and how often it was asked again."""
    errors: list[Exception] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def more(self, count: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.answers) + count
        eventually(lambda: len(self.answers) >= wanted or bool(self.errors))

    def run(self, url: str, requests: Iterator[Sent]) -> None:
        """Send requests on one connection until it is over."""
        host, port = Client(url).connect_to()
        connection = HTTPConnection(host, port, timeout=60)
        try:
            while not self.over.is_set():
                sent = next(requests)
                connection.request("POST", sent[0], json.dumps(sent[1]), {"content-type": "application/json"})
                response = connection.getresponse()
                retries = int(response.getheader("x-retries", "0"))
                self.answers.append((sent, response.status, json.loads(response.read()), retries))
        except Exception as error:
            self.errors.append(error)
        finally:
            connection.close()


@contextmanager
def traffic(url: str, requests: list[Sent]) -> Iterator[Traffic]:
    """Send requests from CLIENTS connections while the block runs."""
    running = Traffic()
    threads = [
        threading.Thread(target=running.run, args=(url, itertools.cycle(requests[at:] + requests[:at])))
        for at in range(0, len(requests), len(requests) // CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running.over.set()
        for thread in threads:
            thread.join()


def replicas(pid: int) -> int:
    """Count the replicas in a process tree."""
    found = 0
    for each in tree(pid):
        try:
            found += REPLICA in Path(f"/proc/{each}/cmdline").read_bytes()
        except OSError:
            continue
    return found


def comparable(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a response without what differs between two requests."""
    return {name: value for name, value in content.items() if name != "request_id"}


def as_answered(url: str, sent: Sent) -> tuple[int, str | None, Mapping[str, Any]]:
    """Return status, type and content of a response."""
    reply = Client(url).post(*sent)
    return reply.status, reply.headers.get("content-type"), comparable(reply.json)


def test_no_request_is_lost_with_a_node_and_answers_are_the_services(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    write_tiny_bundles(bundles)
    # Every other request keeps a replica busy, so that the node has some when it is killed.
    requests = [sent for each in mixed_requests() for sent in (each, DOCUMENTS)]
    wrong = [
        ("/classify", {"text": "a film", "model": "unknown"}),
        ("/classify", {"txt": "a film"}),
        ("/classify", {"text": "film " * 5000, "truncate": "perhaps"}),
        ("/nowhere", {}),
    ]
    with serving(bundles=[bundles]) as live:
        expected = {json.dumps(sent): as_answered(live.url, sent) for sent in requests}
        problems = [as_answered(live.url, sent) for sent in wrong]
        too_large = live.post("/classify", b" " * 3_000_000).status
    with ExitStack() as cluster:
        address, worker = cluster.enter_context(two_nodes(PYTHON, tmp_path, head_cpus=1, worker_cpus=1))
        arguments = [f"bundles={bundles}", "min_replicas=2", "max_replicas=2"]
        url = cluster.enter_context(ray_serve(PYTHON, tmp_path, address, *arguments))
        assert replicas(worker) == 1  # and the other one on the head node: a core each
        assert [as_answered(url, sent) for sent in wrong] == problems
        assert Client(url).post("/classify", b" " * 3_000_000).status == too_large == 413
        with traffic(url, requests) as running:
            running.more(100)
            kill(worker)
            running.more(200)
    assert not running.errors
    for sent, status, content, _ in running.answers:
        right, _, answer = expected[json.dumps(sent)]
        assert status == right and same(comparable(content), answer)
    assert sum(retries for *_, retries in running.answers) > 0, "the node had no request when it was killed"


def test_replicas_follow_the_load(tmp_path: Path) -> None:
    bundle = tmp_path / "names"
    write_tiny_bundle(bundle, "names", SPECS["names"], 4)
    quick = ["upscale_delay_s=0", "downscale_delay_s=1", "look_back_period_s=2", "metrics_interval_s=0.5"]
    arguments = [f"bundles={bundle}", "min_replicas=1", "max_replicas=2", "queued_tokens=500", *quick]
    with ExitStack() as cluster:
        address, head = cluster.enter_context(head_node(PYTHON, tmp_path, cpus=2))
        url = cluster.enter_context(ray_serve(PYTHON, tmp_path, address, *arguments))
        assert replicas(head) == 1
        with traffic(url, [DOCUMENTS] * CLIENTS) as running:
            eventually(lambda: replicas(head) == 2 or bool(running.errors))
            running.more(20)
        eventually(lambda: replicas(head) == 1)
    assert not running.errors
    assert {status for _, status, _, _ in running.answers} == {200}


def test_a_wrong_folder_of_bundles_is_named(tmp_path: Path) -> None:
    with (
        head_node(PYTHON, tmp_path, cpus=1) as (address, _),
        pytest.raises(BaselineError),
        ray_serve(PYTHON, tmp_path, address, f"bundles={tmp_path}/nowhere"),
    ):
        pass
    assert f"{tmp_path}/nowhere is not a folder" in (tmp_path / "serve.log").read_text()
