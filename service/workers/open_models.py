"""Open the models, measure them, and put them behind one scheduler."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from bert.manifest import CUDA
from bert.packing import CostModel
from service.autotune import cost_curve, warmup
from service.autotune.tuning_cache import Measurement
from service.cpu_count import usable_cores
from service.engine.loaded_model import OpenedModel
from service.engine.model_registry import Registry, default_names
from service.engine.slot_layout import SlotLayout
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.fair_queue import FairQueue
from service.scheduling.hang_limit import HangLimit
from service.scheduling.scheduler import MultiSlotEngine, Scheduler
from service.scheduling.served_models import ServedModels
from service.scheduling.throughput import Throughput
from service.settings import ServeSettings

MIN_QUEUE_TOKENS, MAX_QUEUE_TOKENS = 16_384, 1_048_576
"""Bounds of the default of `max_queue_tokens`. An empty service has room for 32 texts of 512 tokens, or 2 of 8,192."""


async def open_models(settings: ServeSettings, metrics: Metrics) -> ServedModels:
    """Open the bundles, measure them and start the scheduler; raises what prevents that."""
    began, layout = time.monotonic(), warmup.slot_layout(settings, usable_cores())
    loaded = await asyncio.to_thread(warmup.load, settings, layout)
    defaults = default_names(loaded.names, settings.default_models)
    for each in loaded.left_out:
        LOGGER.error("model %s is left out and not served: %s", each.name, each.reason)
    measured = await asyncio.to_thread(
        warmup.measure, loaded.models, layout, settings.batch_tokens, use_cache=settings.keep_tuning
    )
    for model in loaded.models:
        if (cost := measured[model.name].cost) is not None:
            model.engine.set_cost(cost)
    scheduler, running_tokens = start_scheduler(settings, metrics, loaded.models, measured, layout)
    LOGGER.info("%d models opened in %.1f s", len(loaded.models), time.monotonic() - began)
    # Closed models lack the multi-slot sessions: those that are not faster are freed with `loaded`.
    closed, (first, _) = {model.name: model.closed() for model in loaded.models}, loaded.names[0]
    registry = Registry(closed, defaults, loaded.left_out, first)
    return ServedModels(registry, scheduler, scheduler.queue.budgets, running_tokens, layout.slots)


def start_scheduler(
    settings: ServeSettings,
    metrics: Metrics,
    models: Sequence[OpenedModel],
    measured: Mapping[str, Measurement],
    layout: SlotLayout,
) -> tuple[Scheduler, int]:
    """Start a scheduler for measured models; return it, and the largest number of tokens in the engine."""
    batch_tokens, curves = settings.batch_tokens, {model.name: measured[model.name].curve for model in models}
    costs = {model.name: _cost(model, measured[model.name]) for model in models}
    throughput = {
        name: cost_curve.fit_throughput(
            curve, batch_tokens or cost_curve.knee(curve), layout.slots, costs[name]
        )
        for name, curve in curves.items()
    }
    large = {name: cost_curve.knee(curve, cost_curve.FULL) for name, curve in curves.items()}
    # A longest batch may be a single text.
    longest = {m.name: max(large[m.name], batch_tokens or 0, m.spec.max_tokens) for m in models}
    engines = {model.name: model.engine for model in models}
    multi_slot = {
        model.name: MultiSlotEngine(model.multi_slot_engine, layout.slots_for_one_text, from_tokens)
        for model in models
        if (from_tokens := measured[model.name].multi_slot_tokens) is not None
        and model.multi_slot_engine is not None
    }
    queue = FairQueue(
        settings.max_queue_tokens or queue_bound(throughput.values(), settings.request_timeout_ms),
        {name: each.budget for name, each in throughput.items()},
        throughput,
        layout.slots,
        large if batch_tokens is None else {},
    )

    limit = HangLimit(
        settings.hung_after_s, settings.request_timeout_ms / 1000, throughput, queue.budgets, longest
    )
    for model in models:
        _warn_of_slow_texts(model, throughput[model.name], settings.request_timeout_ms)
    metrics.watch_queue(engines, queue.waiting)
    LOGGER.info(
        "%d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
        layout.slots,
        layout.threads,
        "/".join(map(str, sorted(set(queue.budgets.values())))),
        queue.max_tokens,
    )
    observe, slots = metrics.observe_batch, layout.slots
    scheduler = Scheduler(
        engines, queue, slots, multi_slot=multi_slot, observe=observe, stuck_after_s=limit.seconds
    )
    return scheduler, slots * max(longest.values())


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
