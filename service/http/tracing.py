"""OpenTelemetry: spans of sampled requests for a collector (OTLP over HTTP). Imported only where `otel_endpoint` is set.

The spans of a request are made from the times that it noted, after its response was sent. A thread sends them.
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from service.http.problems import CLIENT_GONE, ProblemError
from service.http.request_log import MAX_PATH, trace_parent
from service.logs import LOGGER
from service.metrics import Metrics
from service.pipeline.inputs import RequestContext
from service.settings import ServeSettings

MAX_WAITING = 2048
"""Most spans that are made and not sent; while as many wait, a request gets none."""
FLUSH_S = 2.0
"""Longest time that the end of the service waits for the collector."""
TRACES = "/v1/traces"
NO_KEY = frozenset({"unauthorized", "too-many-wrong-keys"})
"""Problems of requests that have no spans: whoever has no key cannot fill the collector."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"})


class _LastMessage(logging.Handler):
    """Keeps the first message since `text` was emptied: why an export failed."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()


class _Sender(SpanExporter):
    """Sends spans; counts those that the collector did not take, and logs when that begins and when it ends."""

    def __init__(self, endpoint: str, metrics: Metrics) -> None:
        self._metrics, self._said = metrics, _LastMessage()
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:], logger.propagate = [self._said], False
        self._exporter = OTLPSpanExporter(endpoint.removesuffix("/").removesuffix(TRACES) + TRACES)
        self.ended = 0
        """Number of spans that were sent or given up."""
        self.is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._said.text, result = "", SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            fails = result is not SpanExportResult.SUCCESS
            if fails:
                self._metrics.spans_dropped.inc(len(spans))
            if fails and not self.is_failing:
                LOGGER.warning("spans do not reach the collector and are dropped: %s", self._said.text)
            elif self.is_failing and not fails:
                LOGGER.info("spans reach the collector again")
            self.is_failing = fails
            self.ended += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class Tracing:
    """Makes the spans of a process's requests, and has them sent."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        """Start the thread; nothing is sent yet. OTEL_ variables say what the settings do not, headers for instance."""
        self._share, self._metrics = settings.otel_share, metrics
        self._sender = _Sender(settings.otel_endpoint, metrics)
        named = Resource({"service.name": "bert-serve"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(ALWAYS_ON, named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._sender, MAX_WAITING))
        self._tracer = self._provider.get_tracer("bert-serve")
        self._propagator = TraceContextTextMapPropagator()
        self._made = 0

    def record(
        self,
        scope: Scope,
        context: RequestContext,
        route: str,
        status: int,
        problem: ProblemError | None,
        lines: int | None,
    ) -> None:
        """Make the spans of a finished request, if its client or the share of the settings wants them."""
        parent = trace_parent(scope)
        if not (parent.is_sampled if parent else random.random() < self._share):
            return
        if problem is not None and problem.code in NO_KEY:
            return
        count = 1 + len(context.starts)
        if self._made - self._sender.ended + count > MAX_WAITING:
            self._metrics.spans_dropped.inc(count)
            return
        self._made += count
        now_ns, now, counter = time.time_ns(), time.monotonic(), time.perf_counter()
        sent = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        outcome = problem.status if problem is not None else status
        reason = "client-gone" if status == CLIENT_GONE else problem.code if problem is not None else None
        has_failed = outcome >= HTTPStatus.INTERNAL_SERVER_ERROR
        found = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status if status != CLIENT_GONE else None,
            # By the conventions, errors of clients are none of the server's.
            "error.type" if has_failed else "bert.reason": reason,
            "url.scheme": scope["scheme"],
            "bert.lines": lines,
            **_described(context),
        }
        span = self._tracer.start_span(
            f"{method} {route}" if route else method,
            self._propagator.extract(sent) if parent else None,
            SpanKind.SERVER,
            {name: value for name, value in found.items() if value},
            start_time=now_ns - _ns(now - context.began),
        )
        inside = set_span_in_context(span)
        for phase, start in context.starts.items():
            start_ns = now_ns - _ns(counter - start)
            child = self._tracer.start_span(phase, inside, start_time=start_ns)
            child.end(start_ns + _ns(context.seconds[phase]))
        if has_failed:
            span.set_status(StatusCode.ERROR)
        span.end(now_ns)
        context.trace_id = f"{span.get_span_context().trace_id:032x}"

    async def close(self) -> None:
        """Send what waits: for at most FLUSH_S, and not to a collector that did not answer last."""
        flushing = threading.Thread(target=self._provider.shutdown, daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, 0 if self._sender.is_failing else FLUSH_S)
        if left := self._made - self._sender.ended:
            self._metrics.spans_dropped.inc(left)
            LOGGER.warning("%d spans were not sent before the end", left)


def _described(context: RequestContext) -> dict[str, str | int]:
    """Return what a request's context says about it. No texts, and no query string."""
    return {
        "url.path": context.endpoint[:MAX_PATH],
        "bert.request_id": context.request_id,
        "bert.model": context.model,
        "bert.model.version": context.version,
        "bert.tokens": context.tokens,
        "bert.texts": len(context.lengths),
        "bert.key": context.grant.name if context.grant is not None else "",
    }


def _ns(seconds: float) -> int:
    return int(1e9 * seconds)
