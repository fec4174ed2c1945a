"""How fast the loaded models are on this machine: what was kept of earlier measurements, and the rest measured."""

import time
from collections.abc import Sequence

from service.autotune import cost_curve, tuning_cache
from service.autotune.tuning_cache import Measured
from service.engine.model_registry import OpenedModel, all_on_gpu
from service.engine.onnx_engine import CPU, CUDA
from service.settings import ServeSettings

CURVE_TOKENS = {CPU: 512, CUDA: 65_536}
"""The largest batch that is tried; a GPU is not busy before it has some thousand tokens."""
DISTURBED = 1.5
"""A measurement whose batches took so many times their CPU time is used and not kept: other work was in its way."""
START_S = {CPU: 0.5, CUDA: 3.0}
"""For a curve, at start; a GPU has more sizes to go through, and each is met for the first time."""


def planned(settings: ServeSettings, cores: int) -> cost_curve.Plan:
    """Divide the cores, or a GPU if all models are for one. Raises ConfigError and BundleError."""
    on_gpu = all_on_gpu(settings.bundles)
    return cost_curve.plan(cores, settings.engine_slots, settings.engine_threads_per_slot, on_gpu=on_gpu)


def measure(
    models: Sequence[OpenedModel], plan: cost_curve.Plan, given: int | None = None, *, keeps: bool = False
) -> dict[str, Measured]:
    """Return what each model's speed is, by name.

    Models of one shape and precision share a measurement: their cost is the same. With `keeps` what was kept is taken, and
    what is measured is kept. Where the tokens of a batch are `given` larger ones are not tried, and nothing is kept.
    """
    found, by_shape = dict[str, Measured](), dict[tuple[object, ...], Measured]()
    keeps = keeps and given is None
    for model in models:
        machine = machine_of(model, plan)
        known = tuning_cache.read(model.bundle, machine) if keeps else None
        if known is None:
            shape = shape_of(model)
            if shape not in by_shape:
                by_shape[shape] = Measured(
                    tuple(measure_curve(model, plan, START_S[model.engine.provider], given)),
                    wide_from(model, plan),
                )
            known = by_shape[shape]
            if keeps and is_steady(known):
                tuning_cache.keep(model.bundle, machine, known)
        found[model.name] = known
    return found


def measure_curve(
    model: OpenedModel, plan: cost_curve.Plan, seconds: float, given: int | None = None
) -> list[cost_curve.Point]:
    """Measure a model's batches for about so many seconds, none larger than is `given`."""
    most = CURVE_TOKENS[model.engine.provider]
    on_this_thread = plan.threads == 1 and model.engine.provider == CPU
    return cost_curve.cost_curve(
        model.engine,
        max(16, min(most, given or most)),
        text_tokens=text_tokens(model),
        budget_s=seconds,
        warms_up=model.engine.provider == CUDA,
        clock=time.thread_time if on_this_thread else time.perf_counter,
    )


def wide_from(model: OpenedModel, plan: cost_curve.Plan) -> int | None:
    """Measure from how many tokens a lone text is faster on several slots, None if on none."""
    if model.wide is None:
        return None
    most = model.bundle.manifest.max_position_embeddings
    return cost_curve.wide_from(model.engine, model.wide, most, plan.wide_slots)


def is_steady(measured: Measured) -> bool:
    """Tell whether nothing else had the cores while it was measured."""
    return all(point.wall_s <= DISTURBED * point.seconds for point in measured.curve)


def text_tokens(model: OpenedModel) -> int:
    """Return the length of the texts that a curve is measured with."""
    return min(cost_curve.TEXT_TOKENS, model.bundle.manifest.max_position_embeddings)


def machine_of(model: OpenedModel, plan: cost_curve.Plan) -> dict[str, object]:
    """Return what a measurement of this model depends on."""
    slots = plan.wide_slots if model.wide is not None else 1
    return tuning_cache.machine_of(model.bundle, model.engine.provider, plan, slots)


def shape_of(model: OpenedModel) -> tuple[object, ...]:
    """Return what a model's speed depends on: models alike in it share a measurement."""
    m = model.bundle.manifest
    return (m.hidden_size, m.num_hidden_layers, m.precision, m.layout, m.max_position_embeddings)
