"""What /metrics shows. One registry for each app, so that two apps in one process do not meet.

Where a service is several processes, PROMETHEUS_MULTIPROC_DIR names a folder in which prometheus_client keeps the numbers of
all of them, those of processes that have ended too; whichever is scraped answers for all.
"""

import os
from collections.abc import Callable, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from service.processes import Processes

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus_client, when it is imported."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = tuple(float(2**power) for power in range(3, 16))
TEXTS = tuple(float(2**power) for power in range(0, 10))
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)

REJECTIONS = ("queue_full", "too_large", "deadline", "not_ready", "unauthorized", "client_gone")


class Metrics:
    """Every metric of the service; what each means is its help text."""

    def __init__(self) -> None:
        """Create all of them, with the known reasons of rejection at zero."""
        self.registry = CollectorRegistry()
        self._is_shared = SHARED in os.environ
        if not self._is_shared:
            ProcessCollector(registry=self.registry)
        self._queue: tuple[Callable[[], float], Callable[[], float]] | None = None
        self._is_ready: Callable[[], bool] = lambda: False
        self._add_requests()
        self._add_batches()
        self._add_state()

    def _add_requests(self) -> None:
        self.request_duration = self._histogram(
            "bert_request_duration_seconds",
            "From the request's first byte read to the answer's last byte written; status 499: the client left.",
            SECONDS,
            ("endpoint", "model", "status"),
        )
        self.queue_duration = self._histogram(
            "bert_queue_duration_seconds",
            "How long a request waited until its first text was in a batch.",
            SECONDS,
        )
        self.tokenize_duration = self._histogram(
            "bert_tokenize_duration_seconds",
            "Tokenising one request's texts, the wait for a thread included.",
            SECONDS,
        )
        self.requests_in_flight = self._gauge(
            "bert_requests_in_flight", "Requests being answered, those to /health and /metrics left out."
        )
        self.requests_rejected = Counter(
            "bert_requests_rejected",
            "Requests that got no result, by reason.",
            ("reason",),
            registry=self.registry,
        )
        for reason in REJECTIONS:
            self.requests_rejected.labels(reason)

    def _add_batches(self) -> None:
        self.inference_duration = self._histogram(
            "bert_inference_duration_seconds", "One batch in the engine: packing, graph, unpacking.", SECONDS
        )
        self.batch_tokens = self._histogram(
            "bert_batch_tokens", "Tokens in a batch, without padding.", TOKENS
        )
        self.batch_texts = self._histogram(
            "bert_batch_texts", "Texts, or windows of long texts, in a batch.", TEXTS
        )
        self.batch_padding_ratio = self._histogram(
            "bert_batch_padding_ratio", "Share of a batch's places that is padding.", RATIOS
        )
        self.queue_tokens = self._gauge("bert_queue_tokens", "Tokens that wait for a batch.")
        self.queue_texts = self._gauge("bert_queue_texts", "Texts or windows that wait for a batch.")

    def _add_state(self) -> None:
        labels = ("model", "task", "version", "precision", "provider", "default")
        self.model_info = self._gauge("bert_model_info", "1 for each loaded model.", labels, "livemax")
        self.ready = self._gauge("bert_ready", "1 while /health/ready answers 200.", mode="livemostrecent")
        self.engine_restarts: Counter | None = None
        if self._is_shared:
            self.engine_restarts = Counter(
                "bert_engine_restarts",
                "Engine processes that were started because the one before had ended.",
                registry=self.registry,
            )

    def _histogram(
        self, name: str, meaning: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)

    def _gauge(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        mode: Literal["livesum", "livemax", "livemostrecent"] = "livesum",
    ) -> Gauge:
        """Make a gauge; `mode` says how the processes' numbers become one."""
        return Gauge(name, meaning, labels, registry=self.registry, multiprocess_mode=mode)

    def watch_ready(self, is_ready: Callable[[], bool]) -> None:
        """Ask this for the gauge at each scrape."""
        self._is_ready = is_ready
        if not self._is_shared:
            self.ready.set_function(lambda: float(is_ready()))

    def watch_queue(self, tokens: Callable[[], float], texts: Callable[[], float]) -> None:
        """Read the two queue gauges from these at each scrape, so that they cannot drift from the truth."""
        self._queue = (tokens, texts)
        if not self._is_shared:
            self.queue_tokens.set_function(tokens)
            self.queue_texts.set_function(texts)

    def note_queue(self) -> None:
        """Set the queue's gauges, where another process is scraped: nobody can ask this one."""
        if self._is_shared and self._queue is not None:
            tokens, texts = self._queue
            self.queue_tokens.set(tokens())
            self.queue_texts.set(texts())

    def observe_batch(self, tokens: int, texts: int, padding_ratio: float, seconds: float) -> None:
        """Count one batch that ran."""
        self.batch_tokens.observe(tokens)
        self.batch_texts.observe(texts)
        self.batch_padding_ratio.observe(padding_ratio)
        self.inference_duration.observe(seconds)

    def render(self) -> bytes:
        """Return the text format that Prometheus scrapes."""
        if not self._is_shared:
            return generate_latest(self.registry)
        self.ready.set(float(self._is_ready()))
        return generate_latest(shared_registry())


def shared_registry() -> CollectorRegistry:
    """Return the numbers of all processes of this service."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(Processes(os.getppid()))
    return registry
