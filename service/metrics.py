"""Prometheus metrics. Each app has its own registry, so that two apps in one process do not collide.

If the service is several processes, prometheus_client keeps their numbers in the folder PROMETHEUS_MULTIPROC_DIR, also
those of ended processes. A scrape of any process shows the numbers of all.
"""

import asyncio
import os
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    values,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MultiProcessValue

from service.process_metrics import ProcessMetrics

Metric = TypeVar("Metric", bound=MetricWrapperBase)

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that tells prometheus_client where the numbers of several processes are."""

FILE_BYTES = 2**16
"""Bytes of a new file of numbers, as in prometheus_client."""
ENTRY_BYTES = 32
"""Most bytes of an entry besides its name: length, padding, value and time."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = tuple(float(2**power) for power in range(3, 16))
TEXTS = tuple(float(2**power) for power in range(0, 10))
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)

REJECTIONS = (
    *("queue_full", "too_large", "deadline", "not_ready", "unauthorized", "client_gone"),
    *("too_many_connections", "too_many_pipelined", "bodies_full", "responses_full"),
    *("wrong_keys", "rate_limited", "forbidden", "out_of_memory"),
)


class Metrics:
    """Every metric of the service; its help text says what it means."""

    def __init__(self) -> None:
        """Create all metrics, the known reasons of rejection at zero."""
        self.registry = CollectorRegistry()
        self._is_shared = SHARED in os.environ
        if not self._is_shared:
            ProcessCollector(registry=self.registry)
        self._queues: Collection[str] = ()
        self._waiting: Callable[[str], tuple[int, int]] = lambda _: (0, 0)
        self._is_ready: Callable[[], bool] = lambda: False
        self._scraping = asyncio.Lock()
        self._models: Sequence[str] = ()
        self._is_model_ready: Callable[[str], bool] = lambda _: False
        self._series: dict[tuple[object, ...], MetricWrapperBase] = {}
        self._add_requests()
        self._add_results()
        self._add_batches()
        self._add_state()

    def _add_requests(self) -> None:
        self.request_duration = self._histogram(
            "bert_request_duration_seconds",
            "Time from a request's first byte until its whole response was handed to the connection; status 499: the client "
            "disconnected.",
            SECONDS,
            ("endpoint", "model", "status"),
        )
        self.queue_duration = self._histogram(
            "bert_queue_duration_seconds",
            "Time until the first text of a request was in a batch.",
            SECONDS,
            ("model",),
        )
        self.tokenize_duration = self._histogram(
            "bert_tokenize_duration_seconds",
            "Time to tokenise a request's texts, including the wait for a thread.",
            SECONDS,
            ("model",),
        )
        self.tokens = Counter(
            "bert_tokens",
            "Tokens of successful requests, including special tokens and window overlaps.",
            ("model",),
            registry=self.registry,
        )
        self.shadow_requests = Counter(
            "bert_shadow_requests",
            "Requests for a shadow version: its labels are the same or differ, it was dropped as others waited, or failed.",
            ("model", "version", "result"),
            registry=self.registry,
        )
        self.requests_in_flight = self._gauge(
            "bert_requests_in_flight", "Requests in progress, except those to /health and /metrics."
        )
        self.requests_rejected = Counter(
            "bert_requests_rejected",
            "Requests without a result, by reason; not_ready excludes probes and pages.",
            ("reason",),
            registry=self.registry,
        )
        for reason in REJECTIONS:
            self.requests_rejected.labels(reason)
        self._add_access()

    def _add_access(self) -> None:
        self.open_connections = self._gauge("bert_open_connections", "Open client connections.")
        self.requests_by_key = Counter(
            "bert_requests_by_key", "Requests with a named key.", ("key", "status"), registry=self.registry
        )
        self.tokens_by_key = Counter(
            "bert_tokens_by_key",
            "Tokens of successful requests with a named key.",
            ("key",),
            registry=self.registry,
        )
        self.keys_file_error = self._gauge(
            "bert_keys_file_error",
            "1 while the file of keys cannot be read or is wrong, and the keys from before are in force.",
            mode="livemax",
        )
        self.certificate_expiry = self._gauge(
            "bert_certificate_expiry_timestamp_seconds",
            "Time at which the TLS certificate in use expires, in seconds since the epoch; 0 without TLS.",
            mode="livemax",
        )

    def _add_results(self) -> None:
        labels = ("model", "version")
        self.results = Counter(
            "bert_results",
            "Results by the label answered: the best one, each entity's type, or answer and no_answer.",
            (*labels, "label"),
            registry=self.registry,
        )
        self.result_score = self._histogram(
            "bert_result_score", "Score of the label, entity, answer or choice of a result.", SCORES, labels
        )
        self.text_tokens = self._histogram(
            "bert_text_tokens", "Tokens of a text, or set of texts, in all its windows.", TOKENS, labels
        )
        self.truncated_texts = Counter(
            "bert_truncated_texts",
            "Texts that were cut at the model's length.",
            labels,
            registry=self.registry,
        )

        self.label_vectors = Counter(
            "bert_label_vectors",
            "Labels of requests to models that read labels apart, by whether their vectors were cached: hit or miss.",
            ("model", "result"),
            registry=self.registry,
        )
        self.label_vectors_bytes = self._gauge(
            "bert_label_vectors_bytes", "Bytes of the vectors of labels that are cached."
        )

    def _add_batches(self) -> None:
        labels = ("model", "version")
        self.inference_duration = self._histogram(
            "bert_inference_duration_seconds",
            "Time of one batch in the engine: packing, graph, unpacking.",
            SECONDS,
            labels,
        )
        self.batch_tokens = self._histogram(
            "bert_batch_tokens", "Tokens in a batch, without padding.", TOKENS, labels
        )
        self.batch_texts = self._histogram(
            "bert_batch_texts", "Texts, or windows of long texts, in a batch.", TEXTS, labels
        )
        self.batch_padding_ratio = self._histogram(
            "bert_batch_padding_ratio", "Share of padding in a batch.", RATIOS, labels
        )
        self.out_of_memory = Counter(
            "bert_batches_out_of_memory",
            "Batches that got no memory and ran again, alone and in parts.",
            ("model",),
            registry=self.registry,
        )
        self.queue_tokens = self._gauge("bert_queue_tokens", "Tokens waiting for a batch.", ("model",))
        self.queue_texts = self._gauge(
            "bert_queue_texts", "Texts or windows waiting for a batch.", ("model",)
        )

    def _add_state(self) -> None:
        self.spans_dropped = Counter(
            "bert_spans_dropped",
            "Spans of traced requests that did not reach the collector.",
            registry=self.registry,
        )
        labels = ("model", "task", "version", "precision", "provider", "default")
        self.model_info = self._gauge("bert_model_info", "1 for each loaded model.", labels, "livemax")
        self.model_left_out = self._gauge(
            "bert_model_left_out",
            "1 for a bundle that could not be loaded and is not served, 0 for the others; /models says why.",
            ("model", "task"),
            "livemax",
        )
        self.model_load_failed = self._gauge(
            "bert_model_load_failed",
            "1 while a bundle that came while the service ran cannot be served, else 0; what was served before goes on, and "
            "/models says why.",
            ("model",),
            "livemax",
        )
        self.model_fallback = self._gauge(
            "bert_model_fallback",
            "1 for a model whose float32 graph is served because its own gives other results on this processor, else 0; "
            "/models says why.",
            ("model",),
            "livemax",
        )
        self.model_ready = self._gauge(
            "bert_model_ready",
            "1 while /health/ready?model=NAME responds with 200, else 0.",
            ("model",),
            "livemostrecent",
        )
        self.ready = self._gauge(
            "bert_ready", "1 while /health/ready responds with 200.", mode="livemostrecent"
        )
        if not self._is_shared:
            return
        self.engine_away_requests = self._gauge(
            "bert_engine_away_requests", "Requests waiting in frontends while no engine process responds."
        )
        self.engine_away_tokens = self._gauge(
            "bert_engine_away_tokens",
            "Tokens of the requests waiting in frontends while no engine process responds.",
        )
        self.engine_restarts = Counter(
            "bert_engine_restarts",
            "Engine processes started because the preceding one had ended.",
            registry=self.registry,
        )
        self.frontend_restarts = Counter(
            "bert_frontend_restarts",
            "Frontends started because the preceding one had ended.",
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
        """Make a gauge; `mode` says how the numbers of several processes are combined."""
        return Gauge(name, meaning, labels, registry=self.registry, multiprocess_mode=mode)

    def watch_ready(self, is_ready: Callable[[], bool]) -> None:
        """Call `is_ready` for the gauge at each scrape."""
        self._is_ready = is_ready

    def watch_models(self, models: Sequence[str], is_ready: Callable[[str], bool]) -> None:
        """Call `is_ready` for each model's gauge at each scrape."""
        self._models, self._is_model_ready = models, is_ready

    def watch_queue(self, models: Collection[str], waiting: Callable[[str], tuple[int, int]]) -> None:
        """Call `waiting` for each model's waiting tokens and texts at each `refresh`, so that the gauges cannot drift.

        `models` are names, and may grow.
        """
        self._queues, self._waiting = models, waiting

    def note_queues(self, *models: str) -> None:
        """Set the gauges of these queues, or of all; another process that is scraped cannot call `waiting`."""
        for model in models or self._queues:
            tokens, texts = self._waiting(model)
            self.series(self.queue_tokens, model).set(tokens)
            self.series(self.queue_texts, model).set(texts)

    def count_restarts(self, kind: Literal["engine", "frontend"], restarts: int) -> None:
        """Raise a counter to `restarts`: it goes on from the process before of this name, which may have died uncounted."""
        if self._is_shared:
            counter = self.engine_restarts if kind == "engine" else self.frontend_restarts
            (counted,) = counter.collect()
            counter.inc(restarts - counted.samples[0].value)

    def note_engine_away(self, requests: int, tokens: int) -> None:
        """Set how much waits in this frontend for the engine process to come back."""
        self.engine_away_requests.set(requests)
        self.engine_away_tokens.set(tokens)

    def series(self, metric: Metric, *labels: str) -> Metric:
        """Return `metric.labels(*labels)`, in a fifth of its time; for what every request needs."""
        key = (metric, *labels)
        if (found := self._series.get(key)) is None:
            found = self._series[key] = metric.labels(*labels)
        return found  # type: ignore[return-value]

    def observe_texts(self, model: str, version: str, tokens: Sequence[int], truncated: int) -> None:
        """Record the lengths of a request's texts, and how many of them were cut."""
        _observe_all(self.series(self.text_tokens, model, version), tokens)
        self.series(self.truncated_texts, model, version).inc(truncated)

    def observe_results(self, model: str, version: str, outcomes: Sequence[tuple[str, float]]) -> None:
        """Record the labels and scores of a request's results."""
        if not outcomes:
            return
        for label, count in Tally(label for label, _ in outcomes).items():
            self.series(self.results, model, version, label).inc(count)
        _observe_all(self.series(self.result_score, model, version), [score for _, score in outcomes])

    def observe_labels(self, model: str, hits: int, misses: int, held_bytes: int) -> None:
        """Record how many of a request's labels had cached vectors, and the bytes of all that are cached."""
        self.series(self.label_vectors, model, "hit").inc(hits)
        self.series(self.label_vectors, model, "miss").inc(misses)
        self.label_vectors_bytes.set(held_bytes)

    def observe_batch(
        self, model: str, version: str, tokens: int, texts: int, padding_ratio: float, seconds: float
    ) -> None:
        """Record one batch that ran."""
        self.series(self.batch_tokens, model, version).observe(tokens)
        self.series(self.batch_texts, model, version).observe(texts)
        self.series(self.batch_padding_ratio, model, version).observe(padding_ratio)
        self.series(self.inference_duration, model, version).observe(seconds)

    def count_out_of_memory(self, model: str) -> None:
        """Count a batch that got no memory; called from the engine's threads."""
        self.out_of_memory.labels(model).inc()

    async def scrape(self) -> bytes:
        """Return the text format of Prometheus, rendered in a thread: for several processes that takes 30 ms.

        Scrapes run one at a time, because several threads would keep the interpreter's lock from the event loop.
        """
        async with self._scraping:
            self.refresh()
            return await asyncio.to_thread(self._render)

    def refresh(self) -> None:
        """Set the gauges of this process that are watched and not counted."""
        self.note_queues()
        self.ready.set(float(self._is_ready()))
        for model in self._models:
            self.model_ready.labels(model).set(float(self._is_model_ready(model)))

    def _render(self) -> bytes:
        return generate_latest(shared_registry() if self._is_shared else self.registry)


def _observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """Observe many values with a write for each bucket, not for each value."""
    if len(values) == 1:
        histogram.observe(values[0])
        return
    bounds = histogram._upper_bounds
    for bucket, count in Tally(bisect_left(bounds, value) for value in values).items():
        histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(values))


class AllocatedFile(MmapedDict):
    """A file of numbers whose disk space is there before it is mapped.

    A process that writes to a mapped page for which the disk has no room is killed (SIGBUS). Here it gets an OSError before.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        """Open the file, or create it."""
        self._name = filename
        if not read_mode and not os.path.exists(filename):
            self._allocate(FILE_BYTES, beside := f"{filename}.new")
            if os.path.exists(beside):
                os.rename(beside, filename)  # a scrape that read an empty file would fail
        super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + ENTRY_BYTES > self._capacity:
            self._allocate(2 * self._capacity, self._name)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _allocate(self, size: int, name: str) -> None:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with open(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)


def share(name: str, folder: Path) -> None:
    """Keep this process's numbers in files of this name in a folder, and continue those that an ended process left.

    By default files are named by process id, and a scrape reads those of every ended process. Call this before the first
    metric is created.
    """
    os.environ[SHARED] = str(folder)
    values.MmapedDict = AllocatedFile  # type: ignore[attr-defined]
    values.ValueClass = MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]


def shared_registry() -> CollectorRegistry:
    """Return a registry with the numbers of all processes of this service."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    registry.register(ProcessMetrics(os.getppid()))
    return registry
