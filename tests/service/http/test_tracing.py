"""Spans of requests at a real collector: whose they are, when, and that nothing waits for it."""

import importlib.metadata
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bert.errors import ConfigError
from service.cli import check_otel
from service.http import tracing
from service.http.request_log import trace_parent
from service.settings import ServeSettings
from tests.support.collector import Collector, attributes, collecting
from tests.support.fleet import fleet
from tests.support.live import Client, Live, Reply, eventually, serving
from tests.support.process import ROOT, address, started
from tests.support.slow import gated

TEXT = {"text": "a secret film"}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
PHASES = ["tokenize", "queue", "inference", "decode"]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting() as running:
        yield running


@pytest.fixture
def traced(bundles: Path, collector: Collector) -> Iterator[Live]:
    """A service of one process that takes a trace only where its client asks."""
    with serving(bundles=[bundles / "mood"], otel_endpoint=collector.url, otel_share=0.0) as running:
        yield running


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """What the service logs."""
    found = list[logging.LogRecord]()
    handler = logging.Handler(logging.INFO)
    handler.emit = found.append  # type: ignore[assignment, method-assign]
    logger, level = logging.getLogger("bert_serve"), logging.getLogger("bert_serve").level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def stages(reply: Reply) -> dict[str, float]:
    """Return the milliseconds of Server-Timing."""
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", reply.headers["server-timing"])}


@pytest.mark.parametrize("frontends", [0, 2])
def test_sigterm_sends_the_spans_of_a_request_below_its_callers(
    bundles: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, frontends: int
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.name=blue")
    settings = ("--bundles", str(bundles / "mood"), "--otel-endpoint", collector.url)
    with fleet(*settings, frontends=frontends) as running:
        reply = running.post("/classify", TEXT, traceparent=SAMPLED, tracestate="vendor=1")
        assert (reply.status, collector.requests) == (200, 0)
        running.stop()
        assert running.process.popen.wait(120) == 0
    spans = collector.trace(TRACE)
    assert set(spans) == {"POST /classify", *PHASES}
    server = spans["POST /classify"]
    assert (server.parent_span_id.hex(), server.trace_state) == (CALLER, "vendor=1")
    assert (server.kind, server.status.code) == (Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET)
    own = {
        "bert.request_id": reply.headers["x-request-id"],
        "bert.model": "mood",
        "bert.model.version": "1",
        "bert.tokens": reply.json["usage"]["tokens"],
        "bert.texts": 1,
    }
    assert attributes(server) == own | {
        "http.request.method": "POST",
        "http.route": "/classify",
        "http.response.status_code": 200,
        "url.path": "/classify",
        "url.scheme": "http",
    }
    assert collector.resources[0] == {"service.name": "bert-serve", "deployment.name": "blue"}
    ends = [server.start_time_unix_nano]
    for phase, sent_ms in ((phase, stages(reply)[phase]) for phase in PHASES):
        child = spans[phase]
        assert child.parent_span_id == server.span_id
        assert child.start_time_unix_nano >= ends[-1]
        ends.append(child.end_time_unix_nano)
        if phase != "decode":  # which also writes the response, after its head
            assert (ends[-1] - child.start_time_unix_nano) / 1e6 == pytest.approx(sent_ms, abs=0.002)
    assert ends[-1] <= server.end_time_unix_nano
    assert "secret" not in str(collector.spans)


def test_a_caller_decides_and_the_share_is_of_requests_without_one(
    bundles: Path, collector: Collector, traced: Live, lines: list[logging.LogRecord]
) -> None:
    traced.post("/classify", TEXT)
    traced.post("/classify", TEXT, traceparent=UNSAMPLED)
    traced.post("/classify", TEXT, traceparent="nonsense")
    traced.get("/health/ready", traceparent=SAMPLED)
    every_request: dict[str, Any] = {"otel_endpoint": f"{collector.url}/v1/traces", "otel_share": 1}
    with serving(bundles=[bundles / "mood"], **every_request) as every:
        every.post("/classify", TEXT, traceparent=UNSAMPLED)
        every.get("/health/ready")
        every.get("/metrics")
        assert every.get("/nothing/here?text=secret").status == 404
    (span,) = collector.spans
    assert (span.name, span.parent_span_id) == ("GET", b"")
    (line,) = (line for line in lines if getattr(line, "fields", {}).get("status") == 404)
    assert vars(line)["fields"]["trace_id"] == span.trace_id.hex()
    found = attributes(span)
    assert (found["url.path"], found["http.response.status_code"]) == ("/nothing/here", 404)
    assert "http.route" not in found and "secret" not in str(span)


def test_a_failed_request_has_its_reason_and_its_line_the_trace(
    collector: Collector, traced: Live, lines: list[logging.LogRecord]
) -> None:
    with gated(traced, "mood") as engine:
        engine.error = RuntimeError("broken")
        engine.gate.set()
        reply = traced.post("/classify", TEXT, traceparent=SAMPLED)
    assert reply.status == 500
    eventually(lambda: bool(collector.trace(TRACE)))
    span = collector.trace(TRACE)["POST /classify"]
    assert (span.status.code, attributes(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "internal")
    (line,) = (line for line in lines if line.levelno == logging.ERROR)
    assert vars(line)["fields"]["trace_id"] == TRACE
    other = TRACE[::-1]
    assert traced.post("/classify", {}, traceparent=f"00-{other}-{CALLER}-01").status == 422
    eventually(lambda: bool(collector.trace(other)))
    span = collector.trace(other)["POST /classify"]
    assert (span.status.code, attributes(span)["bert.reason"]) == (
        Status.STATUS_CODE_UNSET,
        "invalid-request",
    )


def test_what_a_request_that_was_given_up_or_refused_waited_for_is_seen(
    bundles: Path, collector: Collector
) -> None:
    one_slot: dict[str, Any] = {"engine_slots": 1, "batch_tokens": 32, "max_queue_tokens": 512}
    ask = {"text": ["a film in munich " * 6] * 5}
    refused = TRACE[::-1]
    with (
        serving(bundles=[bundles / "mood"], otel_endpoint=collector.url, otel_share=0, **one_slot) as live,
        ThreadPoolExecutor(4) as pool,
        gated(live, "mood") as engine,
    ):
        running = pool.submit(live.post, "/classify", ask)
        eventually(lambda: engine.batches == 1)
        late = live.post("/classify", ask, x_timeout_ms="1500", traceparent=SAMPLED)
        waiting = [pool.submit(live.post, "/classify", ask) for _ in range(3)]
        eventually(lambda: live.metric("bert_queue_texts") == 4 + 15)
        full = live.post("/classify", ask, traceparent=f"00-{refused}-{CALLER}-01")
        assert (late.status, full.status) == (504, 429)
        engine.gate.set()
        assert {each.result().status for each in (running, *waiting)} == {200}
        assert live.settled_metric("bert_queue_duration_seconds_count") == 4, "of those that had a batch"
        eventually(lambda: bool(collector.trace(TRACE) and collector.trace(refused)))
    for trace, reply in ((TRACE, late), (refused, full)):
        spans = collector.trace(trace)
        assert set(spans) == {"POST /classify", "tokenize", "queue"}
        waited_ms = (spans["queue"].end_time_unix_nano - spans["queue"].start_time_unix_nano) / 1e6
        assert waited_ms == pytest.approx(stages(reply)["queue"], abs=0.002)
    server, queue = (collector.trace(TRACE)[name] for name in ("POST /classify", "queue"))
    assert (queue.end_time_unix_nano - server.start_time_unix_nano) / 1e6 > 1499.9, "until the deadline"
    assert stages(late)["queue"] > 150


def test_who_has_no_key_cannot_fill_the_collector(bundles: Path, collector: Collector) -> None:
    every_request: dict[str, Any] = {"otel_endpoint": collector.url, "otel_share": 1}
    with serving(bundles=[bundles / "mood"], **every_request, api_key="right-key") as keyed:
        sent = [keyed.post("/classify", TEXT, traceparent=SAMPLED, x_api_key="wrong-key") for _ in range(11)]
        assert {reply.status for reply in sent} == {401, 429}
        assert keyed.post("/classify", TEXT, x_api_key="right-key").status == 200
    assert {span.trace_id for span in collector.spans} == {collector.spans[0].trace_id}
    (server,) = (span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER)
    assert attributes(server)["http.response.status_code"] == 200
    assert attributes(server)["bert.key"]


def test_a_request_of_many_lines_has_one_span(collector: Collector, traced: Live) -> None:
    lines = b'{"text": "a film"}\n' * 5
    sent = {"content_type": "application/x-ndjson", "traceparent": SAMPLED}
    assert traced.post("/classify", lines, **sent).status == 200
    eventually(lambda: bool(collector.spans))
    (span,) = collector.spans
    assert (attributes(span)["bert.lines"], attributes(span)["bert.model"]) == (5, "mood")


def test_a_collector_that_refuses_is_told_once_and_what_it_misses_is_counted(
    collector: Collector, traced: Live, lines: list[logging.LogRecord]
) -> None:
    collector.status = 401
    for missed in (5, 10, 15):
        assert traced.post("/classify", TEXT, traceparent=SAMPLED).status == 200
        eventually(lambda missed=missed: traced.metric("bert_spans_dropped_total") == missed)  # type: ignore[misc]
    collector.status = 200
    traced.post("/classify", TEXT, traceparent=SAMPLED)
    eventually(lambda: len(lines) == 2)
    assert len(collector.spans) == 5
    refused, mended = (line.getMessage() for line in lines)
    assert refused.startswith("spans do not reach the collector") and "401" in refused
    assert mended == "spans reach the collector again"


def test_no_spans_are_made_while_too_many_wait(
    collector: Collector, traced: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 12)
    collector.answers.clear()
    for _ in range(4):
        assert traced.post("/classify", TEXT, traceparent=SAMPLED).status == 200
    eventually(lambda: traced.metric("bert_spans_dropped_total") == 10)
    collector.answers.set()
    eventually(lambda: len(collector.spans) == 10)
    traced.post("/classify", TEXT, traceparent=SAMPLED)
    eventually(lambda: len(collector.spans) == 15)


@pytest.mark.slow
@pytest.mark.parametrize("frontends", [0, 2])
def test_a_collector_that_hangs_does_not_hold_requests_nor_the_end(
    bundles: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, frontends: int
) -> None:
    collector.answers.clear()
    # Without a bound on the wait, the parent would kill the frontends, or the end take half a minute.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    settings = (
        "--bundles",
        str(bundles / "mood"),
        "--otel-endpoint",
        collector.url,
        "--otel-share",
        "1",
        "--log-level",
        "warning",
    )
    with fleet(*settings, "--shutdown-grace-s", "1", frontends=frontends) as running:
        assert running.post("/classify", TEXT).status == 200
        eventually(lambda: collector.requests == 1)
        assert running.post("/classify", TEXT).status == 200
        running.stop()
        assert running.process.popen.wait(120) == 0
        said = running.process.error()
    assert "spans were not sent before the end" in said
    assert "is killed" not in said


def test_nothing_is_sent_without_the_setting(bundles: Path, collector: Collector) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_BSP_SCHEDULE_DELAY": "10",
    }
    with started("--bundles", str(bundles / "mood"), **variables) as process:
        client = Client(address(process.until("Ctrl-C")))
        assert client.post("/classify", TEXT, traceparent=SAMPLED).status == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(120) == 0
    assert collector.requests == 0


def test_the_sdk_is_imported_only_with_the_setting() -> None:
    code = """
import sys
from service.http.app import create_app
from service.settings import ServeSettings
async def none(*_): ...
create_app(ServeSettings(bundles=["x"]), none)
print("opentelemetry.sdk" in sys.modules, "requests" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_setting_without_the_extra_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    check_otel(ServeSettings(bundles=[Path("x")]))
    with pytest.raises(ConfigError, match=r"pip install 'bert-train-serve\[otel\]'"):
        check_otel(ServeSettings(bundles=[Path("x")], otel_endpoint="http://127.0.0.1:4318"))


@pytest.mark.parametrize(
    "sent",
    [
        *(
            SAMPLED,
            UNSAMPLED,
            f"00-{TRACE}-{CALLER}-03",
            f"cc-{TRACE}-{CALLER}-01",
            f"cc-{TRACE}-{CALLER}-01-more",
        ),
        *(f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", f"00-{TRACE}-{'0' * 16}-01"),
        *(f"00-{TRACE}-{CALLER}", f"00-{TRACE}-{CALLER}-0", f"00-{TRACE[1:]}-{CALLER}-01", "", "x"),
        *(f"00-{TRACE.upper()}-{CALLER}-01", f"00-{TRACE}-{CALLER}-01-more", f"00-{TRACE}-{CALLER}-zz"),
    ],
)
def test_a_traceparent_is_read_as_opentelemetry_reads_it(sent: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": sent})
    expected = get_current_span(context).get_span_context()
    found = trace_parent({"headers": [(b"host", b"x"), (b"traceparent", sent.encode())]})
    if expected.is_valid:
        assert found == (f"{expected.trace_id:032x}", expected.trace_flags.sampled)
    else:
        assert found is None
