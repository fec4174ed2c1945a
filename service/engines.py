"""The loaded models with their engines: opened, measured, and behind one scheduler."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service import tuning
from service.cpus import usable_cores
from service.engine import CPU
from service.logs import LOGGER
from service.metrics import Metrics
from service.policy import FairQueue
from service.registry import Model, OpenedModel, load_models
from service.scheduler import Ledger, Runner, Scheduler, Wide
from service.settings import ServeSettings
from service.speed import Speed

CURVE_TOKENS = 512
LEAST_QUEUE_TOKENS, MOST_QUEUE_TOKENS = 16_384, 1_048_576
"""A request of 32 of the longest texts always finds room in an empty service."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What runs the models of this process."""

    models: Sequence[Model]
    scheduler: Runner
    budgets: Mapping[str, int]
    """Tokens a batch, by model."""


async def open_engines(settings: ServeSettings, metrics: Metrics, ledger: Ledger | None = None) -> Engines:
    """Open the bundles and measure how fast they are; raises what stands in the way."""
    cores, began = usable_cores(), time.monotonic()
    plan = tuning.plan(cores, settings.engine_slots, settings.engine_threads_per_slot)
    models = await asyncio.to_thread(
        load_models,
        settings.bundles,
        threads=plan.threads,
        wide_threads=plan.wide_slots if settings.engine_wide else 1,
        verify_hashes=settings.verify_hashes,
        workers=cores,
    )
    speeds = await asyncio.to_thread(model_speeds, models, settings.batch_tokens, plan)
    budgets = {name: speed.budget for name, speed in speeds.items()}
    wide = await asyncio.to_thread(wide_engines, models, plan)
    queue = FairQueue(
        settings.max_queue_tokens or queue_bound(speeds.values(), settings.request_timeout_ms),
        budgets,
        speeds,
        plan.slots,
    )
    engines = {model.name: model.engine for model in models}
    scheduler = Scheduler(engines, queue, plan.slots, wide=wide, observe=metrics.observe_batch, ledger=ledger)
    metrics.watch_queue(lambda: queue.tokens, lambda: queue.texts)
    LOGGER.info(
        "%d models opened in %.1f s: %d engine slots of %d threads, batches of %s tokens, at most %d tokens wait",
        len(models),
        time.monotonic() - began,
        plan.slots,
        plan.threads,
        "/".join(map(str, sorted(set(budgets.values())))),
        queue.max_tokens,
    )
    # Without the second sessions: those that are not worth it are forgotten with `models`.
    return Engines([model.closed() for model in models], scheduler, budgets)


def model_speeds(models: Sequence[OpenedModel], given: int | None, plan: tuning.Plan) -> dict[str, Speed]:
    """Measure how fast each model is, and so the tokens of its batches unless they are `given`.

    Models of one shape and precision share a measurement: their cost is the same.
    """
    measured: dict[tuple[object, ...], list[tuning.Point]] = {}
    speeds: dict[str, Speed] = {}
    for model in models:
        m = model.bundle.manifest
        text_tokens = min(tuning.TEXT_TOKENS, m.max_position_embeddings)
        shape = shape_of(model)
        if shape not in measured:
            on_this_thread = plan.threads == 1 and model.engine.provider == CPU
            clock = time.thread_time if on_this_thread else time.perf_counter
            limit = max(16, min(CURVE_TOKENS, given or CURVE_TOKENS))
            measured[shape] = tuning.cost_curve(model.engine, limit, text_tokens=text_tokens, clock=clock)
        curve = measured[shape]
        speeds[model.name] = Speed.of(curve, given or tuning.knee(curve), plan.slots)
    return speeds


def wide_engines(models: Sequence[OpenedModel], plan: tuning.Plan) -> dict[str, Wide]:
    """Measure from how many tokens a lone text is faster on several slots; models for which it never is have none.

    Models of one shape and precision share the measurement.
    """
    measured: dict[tuple[object, ...], int | None] = {}
    found: dict[str, Wide] = {}
    for model in models:
        if model.wide is None:
            continue
        shape = shape_of(model)
        if shape not in measured:
            longest = model.bundle.manifest.max_position_embeddings
            measured[shape] = tuning.wide_from(model.engine, model.wide, longest)
        from_tokens = measured[shape]
        if from_tokens is not None:
            found[model.name] = Wide(model.wide, plan.wide_slots, from_tokens)
    return found


def shape_of(model: OpenedModel) -> tuple[object, ...]:
    """Return what a model's speed depends on: models alike in it share a measurement."""
    m = model.bundle.manifest
    return (m.hidden_size, m.num_hidden_layers, m.precision, m.layout, m.max_position_embeddings)


def queue_bound(speeds: Iterable[Speed], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do in a request's time.

    But no less than LEAST_QUEUE_TOKENS: what a request may have must not hang on a measurement that was disturbed.
    And no more than MOST_QUEUE_TOKENS, however fast the machine: what waits is held in memory.
    """
    fastest = max(speed.tokens_per_s for speed in speeds)
    return min(MOST_QUEUE_TOKENS, max(LEAST_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))
