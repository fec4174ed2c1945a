"""`bert-serve --tune`: what is measured at start, measured with more time, printed and kept for the next start."""

import time
from collections.abc import Iterator, Sequence

from service.autotune import cost_curve, slot_benchmark, tuning_cache, warmup
from service.autotune.tuning_cache import Measured
from service.autotune.warmup import shape_of
from service.cpu_count import usable_cores
from service.engine.model_registry import OpenedModel, load_models
from service.engine.onnx_engine import CPU
from service.settings import ServeSettings

CURVE_S = 5.0
"""Seconds for a curve; at start it has half of one."""


def curves(settings: ServeSettings) -> Iterator[str]:
    """Measure the models as the service would, and yield lines for people.

    Raises BundleError or ConfigError as a start would.
    """
    cores = usable_cores()
    plan = warmup.planned(settings, cores)
    yield f"{cores} cores: {plan.slots} engine slots of {plan.threads} threads"
    loaded = load_models(
        settings.bundles,
        threads=plan.threads,
        wide_threads=plan.wide_slots if settings.engine_wide else 1,
        captures=settings.engine_captures,
        verify_hashes=settings.verify_hashes,
        workers=cores,
        strict=settings.strict,
    )
    for left_out in loaded.left_out:
        yield f"{left_out.name} is left out: {left_out.reason}"
    shapes: dict[tuple[object, ...], list[OpenedModel]] = {}
    for model in loaded.models:
        shapes.setdefault(shape_of(model), []).append(model)
    for alike in shapes.values():
        yield from _curve(alike, plan, settings.batch_tokens, keeps=settings.keep_tuning)


def _curve(
    alike: Sequence[OpenedModel], plan: cost_curve.Plan, given: int | None, *, keeps: bool
) -> Iterator[str]:
    """Yield the table of models of one shape, measured on the first."""
    model = alike[0]
    manifest = model.bundle.manifest
    names = ", ".join(each.name for each in alike)
    yield ""
    yield f"{names}: {manifest.precision}, {manifest.num_hidden_layers} layers of {manifest.hidden_size}"
    curve = warmup.measure_curve(model, plan, CURVE_S)
    alone = cost_curve.one_text(model.engine, model.wide, manifest.max_position_embeddings)
    yield f"  texts of {warmup.text_tokens(model)} tokens in a batch        one text alone"
    yield f"  tokens       ms   tokens/s      1 slot ms   {plan.wide_slots} slots ms"
    for index in range(max(len(curve), len(alone))):
        batch, text = curve[index : index + 1], alone[index : index + 1]
        left = [f"{p.tokens:8,} {1000 * p.seconds:8.2f} {p.tokens_per_s:10,.0f}" for p in batch] or [" " * 28]
        right = [
            f"{t.narrow_ms:14.2f} " + ("            -" if t.wide_ms is None else f"{t.wide_ms:13.2f}")
            for t in text
        ]
        yield "".join((*left, *right))
    budget = given or cost_curve.knee(curve)
    from_tokens = next((text.tokens for text in alone if text.is_worth_it), None)
    full = f", of {cost_curve.knee(curve, cost_curve.FULL)} where much waits"
    yield f"  batches of {budget} tokens{' (batch_tokens)' if given else full}; {_when_wide(from_tokens, plan)}"
    if model.engine.provider == CPU and len(plans := slot_benchmark.divisions(plan.slots * plan.threads)) > 1:
        texts = cost_curve.sample_texts(budget, warmup.text_tokens(model))
        yield from slot_benchmark.lines(
            plan, plans, slot_benchmark.throughputs(model.bundle, plans, texts), budget
        )
    found = Measured(tuple(curve), from_tokens)
    if not warmup.is_steady(found):
        yield "  not kept, other work was in the way of this: measure again when the machine is quiet"
    elif keeps:
        yield from _keep(alike, plan, found)


def _keep(alike: Sequence[OpenedModel], plan: cost_curve.Plan, measured: Measured) -> Iterator[str]:
    """Keep a measurement for each of the models, and say where."""
    for model in alike:
        file = tuning_cache.kept_file(model.bundle)
        was_kept = tuning_cache.keep(model.bundle, warmup.machine_of(model, plan), measured)
        yield f"  kept in {file}" if was_kept else f"  not kept: {file} cannot be written"


def _when_wide(from_tokens: int | None, plan: cost_curve.Plan) -> str:
    """Say from how many tokens a lone text takes several slots."""
    if from_tokens is None:
        return "a lone text takes one slot"
    return f"a lone text takes {plan.wide_slots} slots from {from_tokens} tokens"


def print_curves(settings: ServeSettings) -> None:
    """Print the lines as they come."""
    began = time.monotonic()
    for line in curves(settings):
        print(line, flush=True)
    print(f"\nmeasured in {time.monotonic() - began:.0f} s")
