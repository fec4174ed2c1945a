"""The models of a scheduler: their engines, budgets and limits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert.manifest import CUDA
from bert.names import name_of
from bert.packing import CostModel
from service.engine import cost_curve
from service.engine.cost_curve import CostPoint, Measurement
from service.engine.low_memory import LowMemory
from service.engine.models import Engine, OpenedModel
from service.engine.slot_layout import SlotLayout
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.fair_queue import FairQueue, Throughput
from service.scheduling.scheduler import HangLimit, MultiSlotEngine, Scheduler
from service.settings import ServeSettings

MIN_QUEUE_TOKENS, MAX_QUEUE_TOKENS = 16_384, 1_048_576
"""Bounds of the default of `max_queue_tokens`. An empty service has room for 32 texts of 512 tokens, or 2 of 8,192."""


@dataclass(frozen=True, slots=True)
class ScheduledModels:
    """Engines, budgets and limits of a scheduler by id. The scheduler reads them, so an added model runs at once."""

    settings: ServeSettings
    layout: SlotLayout
    engines: dict[str, Engine] = field(default_factory=dict)
    multi_slot: dict[str, MultiSlotEngine] = field(default_factory=dict)
    throughput: dict[str, Throughput] = field(default_factory=dict)
    budgets: dict[str, int] = field(default_factory=dict)
    """Tokens of a batch."""
    large_budgets: dict[str, int] = field(default_factory=dict)
    """Tokens of a large batch; empty if `batch_tokens` is set."""
    longest: dict[str, int] = field(default_factory=dict)
    """Tokens of the longest batch."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of the bundle, for the metrics: also of an id that was removed, whose last batch may still run."""
    names: set[str] = field(default_factory=set)
    """Names of all models that were ever added: their metrics stay."""

    @property
    def running_tokens(self) -> int:
        """Largest number of tokens in the engine."""
        return self.layout.slots * max(self.longest.values(), default=0)

    def add(self, model: OpenedModel, measured: Measurement) -> None:
        """Add a model; call it on the event loop once the scheduler runs."""
        name, batch_tokens, curve = model.id, self.settings.batch_tokens, measured.curve
        if measured.cost is not None:
            model.engine.set_cost(measured.cost)
        throughput = fit_throughput(
            curve, batch_tokens or cost_curve.knee(curve), self.layout.slots, _cost(model, measured)
        )
        large = cost_curve.knee(curve, cost_curve.FULL)
        # A longest batch may be a single text.
        self.longest[name] = max(large, batch_tokens or 0, model.spec.max_tokens)
        if batch_tokens is None:
            self.large_budgets[name] = large
        self.multi_slot.pop(name, None)
        if measured.multi_slot_tokens is not None and model.multi_slot_engine is not None:
            self.multi_slot[name] = MultiSlotEngine(
                model.multi_slot_engine, self.layout.slots_for_one_text, measured.multi_slot_tokens
            )
        self.budgets[name], self.throughput[name] = throughput.budget, throughput
        self.engines[name], self.versions[name] = model.engine, model.bundle.manifest.version
        self.names.add(model.name)
        _warn_of_slow_texts(model, throughput, self.settings.request_timeout_ms)

    def remove(self, model: str) -> None:
        """Free the engine of an id; a batch that runs keeps it until its end."""
        for each in (
            self.engines,
            self.multi_slot,
            self.throughput,
            self.budgets,
            self.large_budgets,
            self.longest,
        ):
            each.pop(model, None)

    def start(self, metrics: Metrics) -> Scheduler:
        """Start a scheduler for the models."""
        settings, slots = self.settings, self.layout.slots
        bound = settings.max_queue_tokens or queue_bound(
            self.throughput.values(), settings.request_timeout_ms
        )
        queue = FairQueue(bound, self.budgets, self.throughput, slots, self.large_budgets)
        timeout_s = settings.request_timeout_ms / 1000
        limit = HangLimit(settings.hung_after_s, timeout_s, self.throughput, self.budgets, self.longest)
        metrics.watch_queue(self.names, queue.waiting)
        LOGGER.info(
            "%d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
            slots,
            self.layout.threads,
            "/".join(map(str, sorted(set(self.budgets.values())))),
            queue.max_tokens,
        )

        def observe(model: str, *batch: Any) -> None:
            metrics.observe_batch(name_of(model), self.versions[model], *batch)

        return Scheduler(
            self.engines,
            queue,
            slots,
            multi_slot=self.multi_slot,
            observe=observe,
            memory=LowMemory(metrics.count_out_of_memory),
            stuck_after_s=limit.seconds,
        )


def _warn_of_slow_texts(model: OpenedModel, throughput: Throughput, timeout_ms: int) -> None:
    """Log that the longest texts will end in 504, if they will."""
    tokens = model.spec.max_tokens
    if (expected_s := throughput.seconds(throughput.work(tokens))) > timeout_ms / 1000:
        LOGGER.warning(
            "%s: a text of %d tokens, the longest it reads, takes about %.0f s on one slot; request_timeout_ms allows %g s",
            model.name,
            tokens,
            expected_s,
            timeout_ms / 1000,
        )


def _cost(model: OpenedModel, measured: Measurement) -> CostModel | None:
    """Return what a token costs by the length of its text; None on a GPU, where that was not measured."""
    return None if model.provider == CUDA else measured.cost or model.bundle.manifest.expected_cost


def queue_bound(throughput: Iterable[Throughput], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do within the request timeout.

    At least MIN_QUEUE_TOKENS, so that a disturbed measurement does not shrink the largest request. At most
    MAX_QUEUE_TOKENS, as what waits is held in memory.
    """
    fastest = max((each.tokens_per_s for each in throughput), default=0.0)
    return min(MAX_QUEUE_TOKENS, max(MIN_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))


def fit_throughput(
    curve: Sequence[CostPoint], budget: int, slots: int, cost: CostModel | None = None
) -> Throughput:
    """Fit a line through the ends of one slot's cost curve, then learn from its wall times.

    In texts longer than the curve's a token costs more, by `cost`; without it, the same.
    """
    first, last = curve[0], curve[-1]
    token_s, overhead_s = last.seconds / last.tokens, 0.0
    if last.tokens > first.tokens and last.seconds > first.seconds:
        token_s = (last.seconds - first.seconds) / (last.tokens - first.tokens)
        overhead_s = max(0.0, first.seconds - first.tokens * token_s)
    throughput = Throughput(overhead_s, token_s, budget, slots, cost)
    for point in curve:
        if point.wall_s:
            throughput.learn(point.tokens, point.wall_s)
    return throughput
