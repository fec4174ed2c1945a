"""The loaded models with their engines: opened, measured, and behind one scheduler."""

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
"""A request of 32 of the longest texts always finds room in an empty service."""


async def open_models(settings: ServeSettings, metrics: Metrics) -> ServedModels:
    """Open the bundles and measure how fast they are; raises what stands in the way."""
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
    models = loaded.models
    defaults = default_names(loaded.names, settings.default_models)
    for each in loaded.left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    measured = await asyncio.to_thread(
        warmup.measure, models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    speeds = speeds_of(models, measured, settings.batch_tokens, layout.slots)
    budgets = {name: speed.budget for name, speed in speeds.items()}
    multi_slot = multi_slot_engines(models, measured, layout)
    full = full_batches(models, measured)
    # A text alone may be longer than a batch of several.
    longest = {m.name: max(full[m.name], budgets[m.name], m.spec.max_tokens) for m in models}
    queue = FairQueue(
        settings.max_queue_tokens or queue_bound(speeds.values(), settings.request_timeout_ms),
        budgets,
        speeds,
        layout.slots,
        full if settings.batch_tokens is None else {},
    )
    engines = {model.name: model.engine for model in models}
    scheduler = Scheduler(
        engines,
        queue,
        layout.slots,
        multi_slot=multi_slot,
        observe=metrics.observe_batch,
        stuck_after_s=lambda: max(settings.hung_after_s, SLOWEST_BATCHES * slowest_batch_s(speeds, longest)),
    )
    metrics.watch_queue(engines, queue.waiting)
    LOGGER.info(
        "%d models opened in %.1f s: %d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
        len(models),
        time.monotonic() - began,
        layout.slots,
        layout.threads,
        "/".join(map(str, sorted(set(budgets.values())))),
        queue.max_tokens,
    )
    # Without the second sessions: those that are not worth it are forgotten with `models`.
    running_tokens = layout.slots * max(longest.values())
    served = [model.closed() for model in models]
    first, _ = loaded.names[0]
    return ServedModels(served, scheduler, budgets, defaults, loaded.left_out, running_tokens, first)


def speeds_of(
    models: Sequence[Model], measured: Mapping[str, Measurement], given: int | None, slots: int
) -> dict[str, Throughput]:
    """Return how fast each model is, and so the tokens of its batches unless they are `given`."""
    curves = {model.name: measured[model.name].curve for model in models}
    return {
        name: cost_curve.fit_throughput(curve, given or cost_curve.knee(curve), slots)
        for name, curve in curves.items()
    }


def full_batches(models: Sequence[Model], measured: Mapping[str, Measurement]) -> dict[str, int]:
    """Return the tokens of each model's fastest batches."""
    return {model.name: cost_curve.knee(measured[model.name].curve, cost_curve.FULL) for model in models}


def slowest_batch_s(speeds: Mapping[str, Throughput], longest: Mapping[str, int]) -> float:
    """Return the seconds of the slowest batch; `longest` are the tokens of each model's."""
    return max(speed.seconds(longest[name]) for name, speed in speeds.items())


def multi_slot_engines(
    models: Sequence[OpenedModel], measured: Mapping[str, Measurement], layout: SlotLayout
) -> dict[str, MultiSlotEngine]:
    """Return the engines of several slots, of the models for which they are worth it."""
    found: dict[str, MultiSlotEngine] = {}
    for model in models:
        from_tokens = measured[model.name].multi_slot_tokens
        if model.multi_slot_engine is not None and from_tokens is not None:
            found[model.name] = MultiSlotEngine(
                model.multi_slot_engine, layout.slots_for_one_text, from_tokens
            )
    return found


def queue_bound(speeds: Iterable[Throughput], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do in a request's time.

    But no less than MIN_QUEUE_TOKENS: what a request may have must not hang on a measurement that was disturbed.
    And no more than MAX_QUEUE_TOKENS, however fast the machine: what waits is held in memory.
    """
    fastest = max(speed.tokens_per_s for speed in speeds)
    return min(MAX_QUEUE_TOKENS, max(MIN_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))
