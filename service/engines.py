"""The loaded models with their engines: opened, measured, and behind one scheduler."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service import measuring, tuning
from service.cpus import usable_cores
from service.kept import Measured
from service.logs import LOGGER
from service.metrics import Metrics
from service.policy import FairQueue
from service.registry import Model, OpenedModel, Registry, load_models
from service.runner import Runner
from service.scheduler import Ledger, Scheduler, Wide
from service.settings import ServeSettings
from service.speed import Speed

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
    plan = measuring.planned(settings, cores)
    models = await asyncio.to_thread(
        load_models,
        settings.bundles,
        threads=plan.threads,
        wide_threads=plan.wide_slots if settings.engine_wide else 1,
        captures=settings.engine_captures,
        verify_hashes=settings.verify_hashes,
        workers=cores,
    )
    Registry.of(models, settings.default_models)  # or they do not go together
    measured = await asyncio.to_thread(
        measuring.measure, models, plan, settings.batch_tokens, keeps=settings.keep_tuning
    )
    speeds = speeds_of(models, measured, settings.batch_tokens, plan.slots)
    budgets = {name: speed.budget for name, speed in speeds.items()}
    wide = wide_engines(models, measured, plan)
    queue = FairQueue(
        settings.max_queue_tokens or queue_bound(speeds.values(), settings.request_timeout_ms),
        budgets,
        speeds,
        plan.slots,
        full_batches(models, measured) if settings.batch_tokens is None else {},
    )
    engines = {model.name: model.engine for model in models}
    scheduler = Scheduler(engines, queue, plan.slots, wide=wide, observe=metrics.observe_batch, ledger=ledger)
    metrics.watch_queue(lambda: scheduler.waiting_tokens, lambda: scheduler.waiting_texts)
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


def speeds_of(
    models: Sequence[Model], measured: Mapping[str, Measured], given: int | None, slots: int
) -> dict[str, Speed]:
    """Return how fast each model is, and so the tokens of its batches unless they are `given`."""
    curves = {model.name: measured[model.name].curve for model in models}
    return {name: Speed.of(curve, given or tuning.knee(curve), slots) for name, curve in curves.items()}


def full_batches(models: Sequence[Model], measured: Mapping[str, Measured]) -> dict[str, int]:
    """Return the tokens of each model's fastest batches."""
    return {model.name: tuning.knee(measured[model.name].curve, tuning.FULL) for model in models}


def wide_engines(
    models: Sequence[OpenedModel], measured: Mapping[str, Measured], plan: tuning.Plan
) -> dict[str, Wide]:
    """Return the engines of several slots, of the models for which they are worth it."""
    found: dict[str, Wide] = {}
    for model in models:
        from_tokens = measured[model.name].wide_from
        if model.wide is not None and from_tokens is not None:
            found[model.name] = Wide(model.wide, plan.wide_slots, from_tokens)
    return found


def queue_bound(speeds: Iterable[Speed], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do in a request's time.

    But no less than LEAST_QUEUE_TOKENS: what a request may have must not hang on a measurement that was disturbed.
    And no more than MOST_QUEUE_TOKENS, however fast the machine: what waits is held in memory.
    """
    fastest = max(speed.tokens_per_s for speed in speeds)
    return min(MOST_QUEUE_TOKENS, max(LEAST_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))
