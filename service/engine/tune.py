"""`bert-serve --tune`: the measurement of a start with more time, printed and cached for the next start."""

import time
from collections.abc import Iterator, Sequence

from service.engine import cost_curve, measure, tuning_cache
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader, opened
from service.engine.models import OpenedModel, SkippedBundle
from service.engine.slot_layout import SlotLayout, slot_layout
from service.settings import ServeSettings
from service.system import usable_cores

CURVE_S = 5.0
"""Seconds spent on a curve."""


def print_curves(settings: ServeSettings) -> None:
    """Print the lines as they come. Raises BundleError or ConfigError as a start would."""
    began = time.monotonic()
    for line in curves(settings):
        print(line, flush=True)
    print(f"\nmeasured in {time.monotonic() - began:.0f} s")


def curves(settings: ServeSettings) -> Iterator[str]:
    """Measure the models as the service would, and yield the report's lines."""
    cores, found = usable_cores(), find_bundles(settings.bundles)
    layout = slot_layout(settings, cores, found)
    yield f"{cores} cores: {layout.slots} engine slots of {layout.threads} threads"
    loader = BundleLoader.of(settings, layout, found)
    loaded = loader.load(cores, strict=settings.strict)
    for each in (*loaded.values(), *loader.failed):
        if isinstance(each, SkippedBundle):
            yield f"{each.name} is left out: {each.reason}"
    by_shape: dict[tuple[object, ...], list[OpenedModel]] = {}
    for model in opened(loaded):
        by_shape.setdefault(measure.shape_of(model), []).append(model)
    for models in by_shape.values():
        yield from _report(models, layout, settings)


def _report(models: Sequence[OpenedModel], layout: SlotLayout, settings: ServeSettings) -> Iterator[str]:
    """Measure the first of several models of one shape, yield the lines, and cache it for each."""
    manifest = models[0].bundle.manifest
    names = ", ".join(model.name for model in models)
    yield f"\n{names}: {manifest.precision}, {manifest.num_hidden_layers} layers of {manifest.hidden_size}"
    measured = measure.measure_one(models[0], layout, CURVE_S)
    curve, multi_slot_tokens, cost = measured.curve, measured.multi_slot_tokens, measured.cost
    yield f"  texts of {measure.text_tokens(models[0])} tokens in a batch\n  tokens       ms   tokens/s"
    for point in curve:
        yield f"{point.tokens:8,} {1000 * point.seconds:8.2f} {point.tokens_per_s:10,.0f}"
    budget = f"{cost_curve.knee(curve)} tokens, of {cost_curve.knee(curve, cost_curve.FULL)} under load"
    if settings.batch_tokens is not None:
        budget = f"{settings.batch_tokens} tokens (batch_tokens)"
    alone = f"{layout.slots_for_one_text} slots from {multi_slot_tokens} tokens"
    yield f"  batches of {budget}; a lone text takes {alone if multi_slot_tokens is not None else 'one slot'}"
    if cost is not None:
        yield (
            f"  attention costs as much as the rest in rows of {cost.attention_width:,.0f} tokens, "
            f"a run as much as {cost.run_tokens:.0f} tokens"
        )
    if not measure.is_steady(measured):
        yield "  not cached, other programs used the cores: measure again when the machine is quiet"
    elif settings.keep_tuning:
        for model in models:
            file = tuning_cache.cache_file(model.bundle)
            written = tuning_cache.write(model.bundle, tuning_cache.machine_of(model, layout), measured)
            yield f"  cached in {file}" if written else f"  not cached: {file} cannot be written"
