"""bert-serve with several frontends is one service: the same answers and numbers, whichever of them is asked."""

import contextlib
import http.client
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.endpoints import TASK_ENDPOINTS
from tests.support.fleet import Fleet, fleet, frozen, kill, soon
from tests.support.live import Client, Reply, serving
from tests.support.mixed_requests import mixed_requests, same
from tests.support.problems import TEXT, kind
from tests.support.process import ROOT, started
from tests.support.tiny import SPECS

SETTINGS: dict[str, Any] = {
    "default_models": {"classification": "mood"},
    "max_queue_tokens": 8192,
    "batch_tokens": 128,
    "engine_slots": 1,
}
REFUSED: list[tuple[str, object]] = [
    ("/classify", {"text": "a", "model": "nope"}),
    ("/classify", {"text": "a", "model": "names"}),
    ("/classify", {"text": "the " * 100}),
    ("/ner", {"text": "the " * 8000}),
    ("/fill-mask", {"text": "no mask"}),
    ("/qa", {"question": "", "context": "a film"}),
    ("/ner", b"{"),
]


@pytest.fixture(scope="module")
def single(bundles: Path) -> Iterator[Client]:
    """One process that does everything."""
    with serving(bundles=[bundles], **SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def several(bundles: Path) -> Iterator[Fleet]:
    """Two frontends with the same settings."""
    arguments = ("--bundles", str(bundles), "--default-models", "classification=mood")
    with fleet(*arguments, "--max-queue-tokens", "8192") as running:
        yield running


def said(reply: Reply) -> tuple[int, Any]:
    """Return status and body, without what is of this request only."""
    return reply.status, {name: value for name, value in reply.json.items() if name != "request_id"}


def test_every_endpoint_answers_as_one_process_does(single: Client, several: Fleet) -> None:
    asked = [(each.path, each.sent) for each in TASK_ENDPOINTS] + mixed_requests()[:60]
    for _ in several.each_frontend():
        for path, body in asked:
            (here, one), (there, other) = said(single.post(path, body)), said(several.post(path, body))
            assert here == there == 200, (path, body, other)
            assert same(one, other), (path, body)


def test_what_one_process_refuses_is_refused_in_the_same_words(single: Client, several: Fleet) -> None:
    statuses = []
    for path, body in REFUSED:
        assert said(single.post(path, body)) == said(several.post(path, body))
        statuses.append(several.post(path, body).status)
    assert statuses == [404, 422, 422, 413, 422, 422, 400]
    for path in ("/models", "/openapi.json", "/health/live", "/health/ready", "/nothing"):
        assert said(single.get(path)) == said(several.get(path))


def test_whichever_is_scraped_counts_the_requests_of_all(several: Fleet) -> None:
    name, labels = "bert_request_duration_seconds_count", {"endpoint": "/ner", "status": "200"}
    before, sent = several.metric(name, **labels), 0
    for _ in several.each_frontend():
        for _ in range(5):
            assert several.post("/ner", TEXT).status == 200
            sent += 1
    assert sent == 10
    # A request is counted after its response is sent; a frozen process would never count it.
    soon(lambda: several.metric(name, **labels) == before + 10)
    assert [several.metric(name, **labels) for _ in several.each_frontend()] == [before + 10] * 2


def test_the_metrics_are_those_of_one_process(single: Client, several: Fleet) -> None:
    several.post("/classify", TEXT)
    shown = single.get("/metrics").body.decode()
    unused = (
        "_created",
        "_by_key_",
        "_shadow_",
        "_out_of_memory_",
        "_label_vectors_total",
    )  # those of the first key, shadow, lack of memory, model that reads labels apart
    helped = {
        line
        for line in shown.splitlines()
        if line.startswith("# HELP bert_") and not any(part in line for part in unused)
    }
    others = several.get("/metrics").body.decode().splitlines()
    added = {line.split()[2] for line in others if line.startswith("# HELP bert_") and line not in helped}
    assert added == {
        *("bert_engine_restarts_total", "bert_frontend_restarts_total"),
        *("bert_engine_away_requests", "bert_engine_away_tokens"),
    }
    assert helped <= set(others)
    metrics = several.metrics()
    assert len(metrics["bert_model_info"].samples) == len(SPECS)
    assert [sample.value for sample in metrics["bert_ready"].samples] == [1.0]


def test_process_metrics_are_sums_over_the_processes(several: Fleet) -> None:
    def value(name: str) -> float:
        (sample,) = several.metrics()[name].samples
        return float(sample.value)

    def memory(kind: str) -> int:
        rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in processes]
        return sum(1024 * int(each.partition(f"\n{kind}:")[2].split()[0]) for each in rolled)

    processes = (several.supervisor, *several.children())
    assert value("process_resident_memory_bytes") == pytest.approx(memory("Pss"), rel=0.1)
    assert value("process_resident_memory_bytes") < 0.9 * memory("Rss"), "what they share counts once"
    assert value("process_cpu_seconds") > 1
    limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in several.children()]
    assert value("process_max_fds") == min(limits)
    files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (several.supervisor, *several.children())]
    assert value("process_open_fds") == pytest.approx(max(files), abs=5)
    assert time.time() - 86_400 < value("process_start_time_seconds") < time.time()


def test_the_time_of_a_process_that_ended_still_counts(several: Fleet) -> None:
    def seconds() -> float:
        (sample,) = several.metrics()["process_cpu_seconds"].samples
        return float(sample.value)

    before = seconds()
    kill(several.engine)
    soon(lambda: several.metric("bert_engine_restarts_total") >= 1)
    several.all_ready()
    assert seconds() >= before


def test_while_the_engine_is_away_requests_have_their_deadlines_and_clients_may_leave(several: Fleet) -> None:
    with frozen(several.supervisor):  # it starts no other engine
        kill(several.engine)
        several.all_waiting()
        late = several.post("/ner", TEXT, x_timeout_ms="200")
        assert (late.status, kind(late)) == (504, "deadline-exceeded")
        assert "200 ms" in late.json["detail"]
        gone = several.connect()
        gone.request("POST", "/ner", b'{"text": "a film"}', {"content-type": "application/json"})
        soon(lambda: several.metric("bert_requests_in_flight") == 1)
        soon(lambda: several.metric("bert_engine_away_requests") == 1)
        assert several.metric("bert_engine_away_tokens") == 4
        gone.close()
        soon(lambda: several.metric("bert_requests_in_flight") == 0)
        too_many = {"text": ["the " * 25] * 300}
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: several.post("/ner", too_many, x_timeout_ms="500"), range(4)))
        assert {reply.status for reply in replies} == {429, 504}
        assert {reply.headers["retry-after"] for reply in replies if reply.status == 429} == {"2"}
    several.all_ready()
    assert several.metric("bert_requests_rejected_total", reason="client_gone") == 1
    assert several.metric("bert_engine_away_requests") == several.metric("bert_engine_away_tokens") == 0


def test_the_engine_may_be_killed_and_every_request_is_answered(several: Fleet) -> None:
    kills, before = 3, several.metric("bert_engine_restarts_total")
    replies: list[Reply] = []
    is_over = threading.Event()

    def post(number: int) -> None:
        for path, body in mixed_requests()[number::8] * 1000:
            if is_over.is_set():
                return
            replies.append(several.post(path, body))

    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(post, number) for number in range(8)]
        try:
            for _ in range(kills):
                answered = len(replies)
                soon(lambda answered=answered: len(replies) > answered + 20)  # type: ignore[misc]
                with frozen(several.supervisor):
                    kill(several.engine)
                    several.all_waiting()
                several.all_ready()
        finally:
            is_over.set()
        for thread in threads:
            thread.result(120)
    assert {reply.status for reply in replies} == {200}
    assert several.metric("bert_engine_restarts_total") == before + kills
    assert several.metric("bert_requests_in_flight") == several.metric("bert_queue_tokens") == 0


def test_a_frontend_that_starts_again_accepts_when_it_has_the_models(several: Fleet) -> None:
    killed, other = several.frontends
    with frozen(other):  # so that only the successor can accept
        kill(killed)
        assert several.readiness() == (200, "")
        # Not /embed, which the next test counts: this request may be counted after that test has begun.
        assert several.post("/classify", TEXT).status == 200


def test_a_frontend_that_is_killed_comes_back_and_others_answer_meanwhile(several: Fleet) -> None:
    killed, other = several.frontends
    files = sorted(several.temporary.glob("*/*.db"))
    restarts = several.metric("bert_frontend_restarts_total")
    name = "bert_request_duration_seconds_count"
    with contextlib.closing(several.connect()) as waiting:
        with frozen(other):  # so that it is the killed one that counts these
            counted = several.metric(name, endpoint="/embed") + 5
            assert {several.post("/embed", TEXT).status for _ in range(5)} == {200}
            # A request is counted after its response is sent, and so may be after the client's next request.
            soon(lambda: several.metric(name, endpoint="/embed") == counted)
            waiting.connect()
        kill(killed)
        assert {several.post("/embed", TEXT).status for _ in range(20)} == {200}
        soon(lambda: several.metric(name, endpoint="/embed") == counted + 20)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            waiting.request("GET", "/health/live")
            assert waiting.getresponse().status == 200
    soon(lambda: len(several.frontends) == 2)
    (new,) = set(several.frontends) - {other}
    assert new != killed
    with frozen(other):
        soon(lambda: several.readiness()[0] == 200)
        assert several.post("/embed", TEXT).status == 200
        assert several.metric(name, endpoint="/embed") == counted + 21
        assert several.metric("bert_frontend_restarts_total") == restarts + 1
    assert sorted(several.temporary.glob("*/*.db")) == files, "a scrape reads no more than before"


def test_files_of_the_working_directory_are_not_run(bundles: Path, tmp_path: Path) -> None:
    """The console script does not look there itself, and neither may its children."""
    (tmp_path / "signal.py").write_text("raise SystemExit('this file was run')")
    command = [
        "env",
        "-C",
        str(tmp_path),
        sys.executable,
        "-P",
        "-c",
        "import sys; from service.cli import main; sys.exit(main())",
    ]
    arguments = ("--port", "0", "--frontends", "1", "--bundles", str(bundles / "mood"))
    with started(*arguments, command=command, PYTHONPATH=str(ROOT)) as process:
        process.until("Ready at")
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(120) == 0
