"""Open the models, measure them, and put them behind one scheduler."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from service.autotune import cost_curve, warmup
from service.autotune.tuning_cache import Measurement
from service.cpu_count import usable_cores
from service.engine.bundle_loader import load_models
from service.engine.loaded_model import Model, OpenedModel
from service.engine.model_registry import default_names
from service.engine.slot_layout import SlotLayout
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.fair_queue import FairQueue
from service.scheduling.scheduler import MultiSlotEngine, Scheduler
from service.scheduling.served_models import ServedModels
from service.scheduling.throughput import Throughput
from service.settings import ServeSettings
from service.workers.heartbeat import SLOWEST_BATCHES

MIN_QUEUE_TOKENS, MAX_QUEUE_TOKENS = 16_384, 1_048_576
"""Bounds of the default of `max_queue_tokens`. An empty service always has room for 32 of the longest texts."""


async def open_models(settings: ServeSettings, metrics: Metrics) -> ServedModels:
    """Open the bundles, measure them and start the scheduler; raises what prevents that."""
    cores, began = usable_cores(), time.monotonic()
    layout = warmup.slot_layout(settings, cores)
    loaded = await asyncio.to_thread(
        load_models,
        settings.bundles,
        threads=layout.threads,
        multi_slot_threads=layout.slots_for_one_text if settings.engine_wide else 1,
        capture_graphs=settings.engine_captures,
        verify_hashes=settings.verify_hashes,
        workers=cores,
        strict=settings.strict,
    )
    models, (first, _) = loaded.models, loaded.names[0]
    defaults = default_names(loaded.names, settings.default_models)
    for each in loaded.left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    measured = await asyncio.to_thread(
        warmup.measure, models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    longest = longest_batches(models, measured, settings.batch_tokens)
    scheduler = start_scheduler(settings, metrics, models, measured, layout, longest)
    LOGGER.info("%d models opened in %.1f s", len(models), time.monotonic() - began)
    # Closed models lack the multi-slot sessions: those that are not faster are freed with `models`.
    served = [model.closed() for model in models]
    running_tokens = layout.slots * max(longest.values())
    budgets = scheduler.queue.budgets
    return ServedModels(served, scheduler, budgets, defaults, loaded.left_out, running_tokens, first)


def start_scheduler(
    settings: ServeSettings,
    metrics: Metrics,
    models: Sequence[OpenedModel],
    measured: Mapping[str, Measurement],
    layout: SlotLayout,
    longest: Mapping[str, int],
) -> Scheduler:
    """Start a scheduler for measured models; `longest` is the tokens of each model's longest batch."""
    throughput = throughput_of(models, measured, settings.batch_tokens, layout.slots)
    queue = FairQueue(
        settings.max_queue_tokens or queue_bound(throughput.values(), settings.request_timeout_ms),
        {name: each.budget for name, each in throughput.items()},
        throughput,
        layout.slots,
        large_budgets(models, measured) if settings.batch_tokens is None else {},
    )
    engines = {model.name: model.engine for model in models}

    def stuck_after_s() -> float:
        slowest_s = max(each.seconds(longest[name]) for name, each in throughput.items())
        return max(settings.hung_after_s, SLOWEST_BATCHES * slowest_s)

    metrics.watch_queue(engines, queue.waiting)
    LOGGER.info(
        "%d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
        layout.slots,
        layout.threads,
        "/".join(map(str, sorted(set(queue.budgets.values())))),
        queue.max_tokens,
    )
    multi_slot = multi_slot_engines(models, measured, layout)
    observe = metrics.observe_batch
    return Scheduler(
        engines, queue, layout.slots, multi_slot=multi_slot, observe=observe, stuck_after_s=stuck_after_s
    )


def throughput_of(
    models: Sequence[Model], measured: Mapping[str, Measurement], batch_tokens: int | None, slots: int
) -> dict[str, Throughput]:
    """Return each model's throughput, with the knee of its cost curve as the budget unless `batch_tokens` is set."""
    curves = {model.name: measured[model.name].curve for model in models}
    return {
        name: cost_curve.fit_throughput(curve, batch_tokens or cost_curve.knee(curve), slots)
        for name, curve in curves.items()
    }


def large_budgets(models: Sequence[Model], measured: Mapping[str, Measurement]) -> dict[str, int]:
    """Return the tokens of each model's fastest batches."""
    return {model.name: cost_curve.knee(measured[model.name].curve, cost_curve.FULL) for model in models}


def longest_batches(
    models: Sequence[Model], measured: Mapping[str, Measurement], batch_tokens: int | None
) -> dict[str, int]:
    """Return the tokens of each model's longest batch, which may be a single text."""
    large = large_budgets(models, measured)
    return {model.name: max(large[model.name], batch_tokens or 0, model.spec.max_tokens) for model in models}


def multi_slot_engines(
    models: Sequence[OpenedModel], measured: Mapping[str, Measurement], layout: SlotLayout
) -> dict[str, MultiSlotEngine]:
    """Return the multi-slot engines that are faster for some batch."""
    found: dict[str, MultiSlotEngine] = {}
    for model in models:
        from_tokens = measured[model.name].multi_slot_tokens
        if model.multi_slot_engine is not None and from_tokens is not None:
            engine = MultiSlotEngine(model.multi_slot_engine, layout.slots_for_one_text, from_tokens)
            found[model.name] = engine
    return found


def queue_bound(throughput: Iterable[Throughput], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do within the request timeout.

    At least MIN_QUEUE_TOKENS, so that a disturbed measurement does not shrink the largest request. At most
    MAX_QUEUE_TOKENS, as what waits is held in memory.
    """
    fastest = max(each.tokens_per_s for each in throughput)
    return min(MAX_QUEUE_TOKENS, max(MIN_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))
