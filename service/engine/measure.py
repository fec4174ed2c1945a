"""Speed of the loaded models on this machine: read from the tuning cache, else measured."""

import time
from collections.abc import Sequence

from bert.manifest import CPU, CUDA
from bert.packing import TEXT_TOKENS, CostModel
from service.engine import tuning_cache
from service.engine.cost_curve import (
    Clock,
    CostPoint,
    Measurement,
    find_multi_slot_tokens,
    fit_cost,
    time_batches,
    time_wide_text,
)
from service.engine.models import OpenedModel
from service.engine.slot_layout import SlotLayout

CURVE_TOKENS = {CPU: 512, CUDA: 65_536}
"""Tokens of the largest batch that is timed, by provider; a GPU is not busy below some thousands."""
CURVE_S = {CPU: 0.5, CUDA: 3.0}
"""Seconds spent on a curve at start, by provider; a GPU has more sizes, and loads kernels for each."""
DISTURBED = 1.5
"""Wall time over CPU time of a batch above which a measurement is used but not cached."""


def measure(
    models: Sequence[OpenedModel],
    layout: SlotLayout,
    batch_tokens: int | None = None,
    *,
    use_cache: bool = False,
) -> dict[str, Measurement]:
    """Return each model's speed by its id.

    Models of one shape and precision share a measurement: their cost is the same. With `batch_tokens` larger batches are
    not timed, and the cache is not used.
    """
    found, by_shape = dict[str, Measurement](), dict[tuple[object, ...], Measurement]()
    use_cache = use_cache and batch_tokens is None
    for model in models:
        machine = tuning_cache.machine_of(model, layout)
        measured = tuning_cache.read(model.bundle, machine) if use_cache else None
        if measured is None:
            shape = shape_of(model)
            if shape not in by_shape:
                by_shape[shape] = measure_one(model, layout, CURVE_S[model.provider], batch_tokens)
            measured = by_shape[shape]
            if use_cache and is_steady(measured):
                tuning_cache.write(model.bundle, machine, measured)
        found[model.id] = measured
    return found


def measure_one(
    model: OpenedModel, layout: SlotLayout, seconds: float, batch_tokens: int | None = None
) -> Measurement:
    """Measure a model, with about this many seconds for its batches and for a long text."""
    curve = measure_curve(model, layout, seconds, batch_tokens)
    multi_slot_tokens = measure_multi_slot_tokens(model, layout)
    return Measurement(tuple(curve), multi_slot_tokens, measure_cost(model, layout, curve, seconds))


def measure_curve(
    model: OpenedModel, layout: SlotLayout, seconds: float, batch_tokens: int | None = None
) -> list[CostPoint]:
    """Time a model's batches for about this many seconds, none larger than `batch_tokens`."""
    max_tokens = CURVE_TOKENS[model.provider]
    return time_batches(
        model.engine,
        max(16, min(max_tokens, batch_tokens or max_tokens)),
        text_tokens=text_tokens(model),
        budget_s=seconds,
        warm_up=model.provider == CUDA,
        clock=_clock(model, layout),
    )


def measure_cost(
    model: OpenedModel, layout: SlotLayout, curve: Sequence[CostPoint], seconds: float
) -> CostModel | None:
    """Fit what attention and a run cost, with about this many seconds for a long text; None on a GPU, which has no rows."""
    if model.provider == CUDA:
        return None
    max_tokens = model.bundle.manifest.max_position_embeddings
    clock = _clock(model, layout)
    wide = time_wide_text(model.engine, curve, max_tokens, budget_s=seconds, clock=clock)
    if wide is None:
        return None
    return fit_cost(curve, text_tokens(model), wide, model.bundle.manifest.expected_cost)


def _clock(model: OpenedModel, layout: SlotLayout) -> Clock:
    """Return this thread's CPU time, which other programs disturb less, if the engine has no other threads."""
    on_this_thread = layout.threads == 1 and model.provider == CPU
    return time.thread_time if on_this_thread else time.perf_counter


def measure_multi_slot_tokens(model: OpenedModel, layout: SlotLayout) -> int | None:
    """Return the length from which a text is clearly faster on several slots; None if never."""
    if model.multi_slot_engine is None:
        return None
    max_tokens = model.bundle.manifest.max_position_embeddings
    return find_multi_slot_tokens(
        model.engine, model.multi_slot_engine, max_tokens, layout.slots_for_one_text
    )


def is_steady(measured: Measurement) -> bool:
    """Tell whether no other program used the cores during the measurement."""
    return all(point.wall_s <= DISTURBED * point.seconds for point in measured.curve)


def text_tokens(model: OpenedModel) -> int:
    """Return the length of the texts that a curve is measured with."""
    return min(TEXT_TOKENS, model.bundle.manifest.max_position_embeddings)


def shape_of(model: OpenedModel) -> tuple[object, ...]:
    """Return what a model's speed depends on: models alike in it share a measurement."""
    m = model.bundle.manifest
    attention = tuple(sorted(m.attention.items()))
    return (m.hidden_size, m.num_hidden_layers, m.precision, m.layout, m.max_position_embeddings, attention)
