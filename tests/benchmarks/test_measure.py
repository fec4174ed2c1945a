"""A baseline from its start to its end, with a small server in its place."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.serve.baselines.registry import CoreSplit, Place, RequestFormat, ServerBaseline
from benchmarks.serve.compare import main
from benchmarks.serve.load.answers import BaselineTolerance, Expected, Prediction
from benchmarks.serve.load.measure import LoadPlan, Round, measure
from benchmarks.serve.load.process_tree import tree
from benchmarks.serve.load.running import BaselineError, free_port, process, server
from benchmarks.serve.load.wire import ask, request_bytes
from benchmarks.serve.load.workloads import LIST, TEXT, Workload

SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"label": "good", "score": 0.75}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
PLACE = Place(Path(), Path(), None, sys.executable, sys.executable)
PLAN = LoadPlan(connections=(1, 2), closed_s=0.1, open_s=0.1, warm_s=0.05, start_s=60)
FORMS = {
    TEXT: RequestFormat(
        "/", lambda job: {"text": job[0]}, lambda found: [Prediction(found["label"], found["score"])]
    )
}


def baseline(code: str) -> ServerBaseline:
    def command(place: Place, shape: CoreSplit, port: int) -> Sequence[str]:
        return place.python, "-c", code, str(port)

    return ServerBaseline("small", command, FORMS)


def measured(code: str, label: str, log: Path, kind: str = TEXT) -> Round:
    jobs = [("a", "b")] if kind == LIST else [("a",), ("b",)]
    work = Workload("some", kind, jobs, "made up", (1, 2), 2)
    expected = [
        [Expected(label, 0.75) for _ in job] if kind == LIST else [Expected(label, 0.75)] for job in jobs
    ]
    return measure(baseline(code), PLACE, CoreSplit(1, 1), work, expected, PLAN, log)


@pytest.mark.parametrize("kind", [TEXT, LIST])
def test_a_contender_that_answers_is_measured_at_every_load(kind: str, tmp_path: Path) -> None:
    found = measured(SERVER, "good", tmp_path / "log", kind)
    assert found.failure == "" and found.checked is not None and found.checked.passes(BaselineTolerance())
    assert found.checked.answers == 2
    assert [loop.connections for loop in found.closed] == [1, 2]
    assert [loop.share for loop in found.open] == [0.5, 0.8]
    assert found.open[1].rate == pytest.approx(0.8 * found.best_rate)
    assert all(loop.requests > 0 and loop.peak_bytes > 2**20 for loop in found.closed)


def test_wrong_answers_are_found(tmp_path: Path) -> None:
    found = measured(SERVER, "bad", tmp_path / "log")
    assert found.checked is not None and found.checked.wrong_labels == 2


def test_a_contender_that_ends_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    found = measured("raise SystemExit('no such model')", "good", tmp_path / "log")
    assert "it ended with 1" in found.failure and "no such model" in found.failure
    assert found.closed == [] and found.checked is None


def test_nothing_is_left_of_a_contender(tmp_path: Path) -> None:
    port = free_port()
    first = request_bytes(f"http://127.0.0.1:{port}", "/", {})
    with server([sys.executable, "-c", SERVER, str(port)], port, first, tmp_path / "log", 60) as running:
        assert len(tree(running.pid)) == 2
        assert ask(running.url, first) == {"label": "good", "score": 0.75}
    assert all(stat.ended for stat in tree(running.pid).values())


def test_a_server_that_does_not_answer_in_time_is_an_error(tmp_path: Path) -> None:
    waiting = [sys.executable, "-c", "input()"]
    with (
        pytest.raises(BaselineError, match="no answer within 0 s"),
        server(
            [sys.executable, "-c", "import time; time.sleep(60)"], free_port(), b"", tmp_path / "log", 0.1
        ),
    ):
        pass
    with process(waiting, tmp_path / "log") as started:
        assert started.wait(120) == 1  # nothing to read: stdin is empty


def test_the_contenders_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "mosec-tuned: mosec, sorted and split by hand" in capsys.readouterr().out
