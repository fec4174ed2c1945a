"""The log's line of a request that failed: who asked for what, why it failed, and never a text."""

import asyncio
import logging
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.access.grants import Grant, Rules
from service.http.authorise import WRONG_KEYS
from service.http.problems import ProblemError
from service.http.request_log import MAX_FAILED_PER_S, RequestLog
from service.pipeline.inputs import RequestContext
from tests.support.live import Live, Reply, eventually, serving
from tests.support.slow import gated

SECRET, KEY = "secret film", "right-key"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module")
def logged(bundles: Path) -> Iterator[Live]:
    settings: dict[str, Any] = {
        "max_body_bytes": 20_000,
        "max_queue_tokens": 512,
        "api_key": KEY,
        "engine_slots": 1,
        "batch_tokens": 32,
    }
    with serving(bundles=[bundles / "mood"], **settings) as running:
        yield running


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    """Lines of requests as they are written, at the default level; `level` and `message` among their fields."""
    found = list[dict[str, Any]]()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields = getattr(record, "fields", {})
            found.append(
                {"level": record.levelname, "message": record.getMessage(), "exc": record.exc_info, **fields}
            )

    logger, handler = logging.getLogger("bert_serve"), Collector()
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "bert_serve"):
        yield found
    logger.removeHandler(handler)


def the_line(lines: list[dict[str, Any]], request_id: str) -> dict[str, Any]:
    eventually(lambda: any(line.get("request_id") == request_id for line in lines))
    (line,) = (line for line in lines if line.get("request_id") == request_id)
    assert SECRET not in str(line)
    return line


@pytest.mark.parametrize(
    ("sent", "path", "body", "status", "reason", "level"),
    [
        ({"x_api_key": "wrong"}, "/classify", {"text": SECRET}, 401, "unauthorized", "INFO"),
        ({}, "/classify", {"text": SECRET, "top_k": 0}, 422, "invalid-request", "INFO"),
        ({}, "/classify", {"text": SECRET * 3000}, 413, "body-too-large", "INFO"),
        ({}, "/classify", {"text": ["a film in munich " * 6] * 40}, 413, "request-too-large", "INFO"),
        ({}, "/ner", {"text": SECRET}, 404, "unknown-model", "INFO"),
    ],
)
def test_a_failed_request_leaves_a_line(
    logged: Live,
    lines: list[dict[str, Any]],
    sent: dict[str, str],
    path: str,
    body: dict[str, Any],
    status: int,
    reason: str,
    level: str,
) -> None:
    reply = logged.post(path, body, **{"x_api_key": KEY, **sent})
    assert reply.status == status
    line = the_line(lines, reply.headers["x-request-id"])
    assert (line["status"], line["reason"], line["level"]) == (status, reason, level)
    assert line["message"].startswith(f"POST {path}")
    assert line["client"] == "127.0.0.1"
    assert line["ms"] > 0


def test_a_full_queue_and_a_fault_leave_lines_with_model_version_and_stages(
    logged: Live, lines: list[dict[str, Any]]
) -> None:
    ask = {"text": ["a film in munich " * 6] * 5}

    def post(**headers: str) -> Reply:
        return logged.post("/classify", ask, x_api_key=KEY, **headers)

    with ThreadPoolExecutor(4) as pool, gated(logged, "mood") as engine:
        engine.error = RuntimeError("broken")
        running = pool.submit(post)
        eventually(lambda: engine.batches == 1)
        late = post(x_timeout_ms="300", traceparent=f"00-{TRACE}-b7ad6b7169203331-00")
        waiting = [pool.submit(post) for _ in range(3)]
        eventually(lambda: logged.metric("bert_queue_texts") == 4 + 15)
        refused = post()
        engine.gate.set()
        failed = [each.result() for each in (running, *waiting)]
    assert [refused.status, *(each.status for each in failed)] == [429, *[500] * 4]
    line = the_line(lines, refused.headers["x-request-id"])
    assert (line["level"], line["reason"], line["model"], line["version"]) == (
        "WARNING", "queue-full", "mood", "1",
    )  # fmt: skip
    assert line["tokenize_ms"] > 0 and line["tokens"] > 40
    assert "trace_id" not in line
    assert "try again in" in line["message"]
    line = the_line(lines, late.headers["x-request-id"])
    assert (line["status"], line["level"], line["reason"]) == (504, "WARNING", "deadline-exceeded")
    assert line["trace_id"] == TRACE
    line = the_line(lines, failed[0].headers["x-request-id"])
    assert (line["level"], line["reason"]) == ("ERROR", "internal")
    assert "broken" in repr(line["exc"]), "its trace"


def test_a_missing_model_leaves_a_line_and_a_probe_none(
    bundles: Path, tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "names/model.onnx").write_bytes(b"half")
    with serving(bundles=[tmp_path], ready_when="all", wait=False) as live:
        eventually(lambda: live.service.is_loaded())
        assert live.get("/health/ready").status == 503
        reply = live.post("/ner", {"text": SECRET})
        line = the_line(lines, reply.headers["x-request-id"])
    assert (line["status"], line["level"], line["reason"]) == (503, "WARNING", "model-left-out")
    assert "names" in line["message"]
    assert not [line for line in lines if "/health" in line["message"]]


def test_a_failed_line_of_many_has_its_number(logged: Live, lines: list[dict[str, Any]]) -> None:
    body = b'{"text": "a film"}\n{"text": 1}\n'
    kind = "application/x-ndjson"
    reply = logged.post("/classify", body, content_type=kind, x_api_key=KEY)
    line = the_line(lines, reply.headers["x-request-id"])
    assert (line["status"], line["line"], line["reason"]) == (422, 2, "invalid-request")


def test_a_connection_that_does_not_speak_http_leaves_a_line(
    logged: Live, lines: list[dict[str, Any]]
) -> None:
    with socket.create_connection(logged.connect_to(), 10) as connection:
        connection.sendall(b"no http\r\n\r\n")
        connection.recv(4096)
    eventually(lambda: any(line.get("reason") == "malformed-http" for line in lines))
    (line,) = (line for line in lines if line.get("reason") == "malformed-http")
    assert (line["message"], line["status"], line["client"]) == ("connection", 400, "127.0.0.1")


def test_with_the_access_log_a_failed_request_has_one_line(
    bundles: Path, lines: list[dict[str, Any]]
) -> None:
    with serving(bundles=[bundles / "mood"], access_log=True) as live:
        reply = live.post("/classify", {"text": 1})
        assert the_line(lines, reply.headers["x-request-id"])["reason"] == "invalid-request"


def test_lines_come_at_a_bounded_rate_and_the_rest_is_counted(lines: list[dict[str, Any]]) -> None:
    asyncio.run(a_storm(lines))


def test_guesses_of_keys_take_no_room_of_warnings(bundles: Path, lines: list[dict[str, Any]]) -> None:
    with serving(bundles=[bundles / "mood"], api_key=KEY) as live:
        for n in range(WRONG_KEYS + 1):
            reply = live.get("/models", x_api_key=f"guess-{n}")
    line = the_line(lines, reply.headers["x-request-id"])
    assert (line["status"], line["reason"], line["level"]) == (429, "too-many-wrong-keys", "INFO")


def test_who_changed_the_models_has_a_line(bundles: Path, lines: list[dict[str, Any]]) -> None:
    with serving(bundles=[bundles / "mood"], admin_api_key="correct-horse") as live:
        reply = live.post("/models/mood/load", {}, x_api_key="correct-horse")
        line = the_line(lines, reply.headers["x-request-id"])
    assert (line["message"], line["status"], line["client"]) == ("POST /models/mood/load", 200, "127.0.0.1")


async def a_storm(lines: list[dict[str, Any]]) -> None:
    log, scope = RequestLog(logs_all=False), {"method": "POST", "state": {}}
    storm, fault = ProblemError(422, "invalid-request", ""), ProblemError(500, "internal", "")

    def fail(problem: ProblemError) -> None:
        context = RequestContext("id", "/ner", 0.0, grant=Grant("shop", Rules()))
        log.write(scope, context, problem.status, problem)

    for _ in range(10 * MAX_FAILED_PER_S):
        fail(storm)
    fail(fault)
    assert [line["level"] for line in lines] == ["INFO"] * MAX_FAILED_PER_S + ["ERROR"]
    assert lines[0]["key"] == "shop"
    lines.clear()
    while not lines:
        await asyncio.sleep(0.05)
    assert [line["left_out"] for line in lines] == [9 * MAX_FAILED_PER_S]
    fail(storm)
    assert lines[-1]["reason"] == "invalid-request", "the next second has room"
