"""Open the models, measure them, and put them behind one scheduler; try those again that were skipped."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert.errors import BundleError
from bert.manifest import CUDA
from bert.packing import CostModel
from service.engine import cost_curve
from service.engine.bundle_folders import (
    FileStates,
    FoundBundles,
    file_states,
    find_bundles,
    settled,
)
from service.engine.bundle_loader import BundleLoader, duplicate_error, opened
from service.engine.cost_curve import CostPoint, Measurement
from service.engine.measure import measure
from service.engine.models import Engine, Model, OpenedModel, Registry, SkippedBundle
from service.engine.slot_layout import SlotLayout, slot_layout
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.fair_queue import FairQueue, Throughput
from service.scheduling.scheduler import HangLimit, MultiSlotEngine, Scheduler
from service.scheduling.scheduler_protocol import ServedModels
from service.settings import ServeSettings
from service.system import release_free_memory, usable_cores

RETRY_EVERY_S = 1.0
"""Seconds between two looks at the files of bundles that were skipped."""
MIN_QUEUE_TOKENS, MAX_QUEUE_TOKENS = 16_384, 1_048_576
"""Bounds of the default of `max_queue_tokens`. An empty service has room for 32 texts of 512 tokens, or 2 of 8,192."""


async def open_models(
    settings: ServeSettings,
    metrics: Metrics,
    found: FoundBundles | None = None,
    *,
    is_successor: bool = False,
) -> ServedModels:
    """Open the bundles, measure them and start the scheduler; raises what prevents that.

    `found` are the bundles that the service found when it started, by default those that are there now. A successor serves
    what it can rather than nothing, also with the setting `strict`.
    """
    began, cores = time.monotonic(), usable_cores()
    found = find_bundles(settings.bundles) if found is None else found
    layout = slot_layout(settings, cores, found)
    loader = BundleLoader.of(settings, layout, found)
    loaded = await asyncio.to_thread(loader.load, cores, strict=settings.strict and not is_successor)
    every = [*loaded.values(), *loader.failed]
    # Raises before the models are measured.
    left_out = Registry.of(every, settings.default_models).left_out
    for each in left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    models = opened(loaded)
    measured = await asyncio.to_thread(
        measure, models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    scheduled = ScheduledModels(settings, layout)
    for model in models:
        scheduled.add(model, measured[model.name])
    served = ServedBundles(loaded, loader, scheduled, scheduled.start(metrics))
    LOGGER.info("%d models opened in %.1f s", len(models), time.monotonic() - began)
    return replace(served.now(), changes=served.changes() if left_out or settings.better_bundles else None)


class ServedBundles:
    """The bundles that a service found, and what is served of them.

    Those that were skipped are tried again, and those with a better one are replaced by it once it is there.
    """

    def __init__(
        self,
        loaded: Mapping[Path, OpenedModel | SkippedBundle],
        loader: BundleLoader,
        scheduled: "ScheduledModels",
        scheduler: Scheduler,
    ) -> None:
        """Take what was loaded, and what runs it."""
        self._loader, self._scheduled, self._scheduler = loader, scheduled, scheduler
        # Without engines: multi-slot sessions that are not faster are freed with `loaded`.
        self._bundles: dict[Path, Model | SkippedBundle] = {
            folder: each.without_engine() if isinstance(each, OpenedModel) else each
            for folder, each in loaded.items()
        }
        self._better = {better: folder for folder, better in scheduled.settings.better_bundles.items()}
        """Bundles that are waited for: folder → the folder whose place in `_bundles` it takes."""

    def now(self) -> ServedModels:
        """Return what is served."""
        tokens, slots = self._scheduled.running_tokens, self._scheduled.layout.slots
        return ServedModels(
            self._registry(self._bundles), self._scheduler, self._scheduled.budgets, tokens, slots
        )

    async def changes(self) -> AsyncIterator[ServedModels]:
        """Yield what is served after each bundle that was tried, until none is skipped or waited for any more."""
        tried = self._loader.tried
        tried |= {folder: {} for folder in self._better}
        seen = dict(tried)
        while watched := [*self._skipped(), *self._better]:
            await asyncio.sleep(RETRY_EVERY_S)
            now = await asyncio.to_thread(_states, watched)
            for folder in settled(now, seen, tried):
                if folder in self._better:
                    await self._improve(folder)
                else:
                    self._bundles[folder] = await self._try(folder)
                yield self.now()
            seen = now

    def _skipped(self) -> list[Path]:
        return [folder for folder, each in self._bundles.items() if isinstance(each, SkippedBundle)]

    async def _try(self, folder: Path) -> Model | SkippedBundle:
        """Load a bundle and let it run, or say why that fails now."""
        before = self._bundles[folder]
        try:
            model, measured = await asyncio.to_thread(self._open, folder)
            # Raises if it cannot be the default that was chosen.
            self._registry({**self._bundles, folder: model})
        except Exception as error:
            reason = self._loader.skipped(folder, error).reason
            LOGGER.error("model %s is still left out: %s", before.name, reason)
            return SkippedBundle(before.name, before.task, reason)
        self._scheduled.add(model, measured)
        LOGGER.warning("model %s was left out and is served now", model.name)
        return model.without_engine()

    async def _improve(self, better: Path) -> None:
        """Let a better bundle run in place of the one before; that one goes on if the better one fails or is no faster."""
        folder = self._better[better]
        before = self._bundles[folder]
        try:
            model, measured = await asyncio.to_thread(self._open, better, folder)
            if isinstance(before, Model) and model.origin != before.origin:
                raise BundleError(f"{better} is of another checkpoint than {folder}; start the service again")
        except Exception as error:
            LOGGER.error("%s goes on as it is: its bundle in 8 bits cannot be served: %r", before.name, error)
            return
        del self._better[better]
        if isinstance(before, Model) and model.bundle.manifest.precision == before.bundle.manifest.precision:
            reason = model.why_fallback or model.bundle.manifest.choice.get("why", "")
            LOGGER.warning("model %s goes on in %s: %s", model.name, model.bundle.manifest.precision, reason)
            return
        self._scheduled.add(model, measured)
        self._bundles[folder] = model.without_engine()
        await asyncio.to_thread(release_free_memory)
        LOGGER.info("model %s is served in %s now", model.name, model.bundle.manifest.precision)

    def _open(self, folder: Path, replaced: Path | None = None) -> tuple[OpenedModel, Measurement]:
        """Open and measure a bundle beside the others; raises what prevents that."""
        model, settings = self._loader.open(folder), self._scheduled.settings
        others = [each for place, each in self._bundles.items() if place != replaced]
        if (error := duplicate_error(model, others)) is not None:
            raise error
        layout, batch_tokens = self._scheduled.layout, settings.batch_tokens
        measured = measure([model], layout, batch_tokens, use_cache=settings.keep_tuning)
        return model, measured[model.name]

    def _registry(self, bundles: Mapping[Path, Model | SkippedBundle]) -> Registry:
        return Registry.of([*bundles.values(), *self._loader.failed], self._scheduled.settings.default_models)


@dataclass(frozen=True, slots=True)
class ScheduledModels:
    """Engines, budgets and limits of a scheduler by model. The scheduler reads them, so an added model runs at once."""

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

    @property
    def running_tokens(self) -> int:
        """Largest number of tokens in the engine."""
        return self.layout.slots * max(self.longest.values())

    def add(self, model: OpenedModel, measured: Measurement) -> None:
        """Add a model, or replace the one of that name; call it on the event loop once the scheduler runs.

        A batch that runs keeps its engine, which is freed at its end.
        """
        name, batch_tokens, curve = model.name, self.settings.batch_tokens, measured.curve
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
        self.engines[name] = model.engine
        _warn_of_slow_texts(model, throughput, self.settings.request_timeout_ms)

    def start(self, metrics: Metrics) -> Scheduler:
        """Start a scheduler for the models."""
        settings, slots = self.settings, self.layout.slots
        bound = settings.max_queue_tokens or queue_bound(
            self.throughput.values(), settings.request_timeout_ms
        )
        queue = FairQueue(bound, self.budgets, self.throughput, slots, self.large_budgets)
        timeout_s = settings.request_timeout_ms / 1000
        limit = HangLimit(settings.hung_after_s, timeout_s, self.throughput, self.budgets, self.longest)
        metrics.watch_queue(self.engines, queue.waiting)
        LOGGER.info(
            "%d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
            slots,
            self.layout.threads,
            "/".join(map(str, sorted(set(self.budgets.values())))),
            queue.max_tokens,
        )
        observe, stuck_after_s = metrics.observe_batch, limit.seconds
        return Scheduler(
            self.engines,
            queue,
            slots,
            multi_slot=self.multi_slot,
            observe=observe,
            stuck_after_s=stuck_after_s,
        )


def _states(folders: Iterable[Path]) -> dict[Path, FileStates]:
    return {folder: file_states(folder) for folder in folders}


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
    fastest = max(each.tokens_per_s for each in throughput)
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
