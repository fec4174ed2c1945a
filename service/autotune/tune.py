"""`bert-serve --tune`: the measurement of a start with more time, printed and cached for the next start."""

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from service.autotune import cost_curve, tuning_cache, warmup
from service.autotune.cost_curve import CostPoint
from service.autotune.engine_timing import TextTiming, time_texts
from service.autotune.tuning_cache import Measurement
from service.cpu_count import usable_cores
from service.engine.bundle_loader import load_models
from service.engine.loaded_model import OpenedModel
from service.engine.slot_layout import SlotLayout
from service.settings import ServeSettings

CURVE_S = 5.0
"""Seconds spent on a curve."""


def print_curves(settings: ServeSettings) -> None:
    """Print the lines as they come."""
    began = time.monotonic()
    for line in curves(settings):
        print(line, flush=True)
    print(f"\nmeasured in {time.monotonic() - began:.0f} s")


def curves(settings: ServeSettings) -> Iterator[str]:
    """Measure the models as the service would, and yield the report's lines.

    Raises BundleError or ConfigError as a start would.
    """
    cores = usable_cores()
    layout = warmup.slot_layout(settings, cores)
    yield f"{cores} cores: {layout.slots} engine slots of {layout.threads} threads"
    loaded = load_models(
        settings.bundles,
        threads=layout.threads,
        multi_slot_threads=layout.slots_for_one_text if settings.engine_wide else 1,
        capture_graphs=settings.engine_captures,
        verify_hashes=settings.verify_hashes,
        workers=cores,
        strict=settings.strict,
    )
    for left_out in loaded.left_out:
        yield f"{left_out.name} is left out: {left_out.reason}"
    by_shape: dict[tuple[object, ...], list[OpenedModel]] = {}
    for model in loaded.models:
        by_shape.setdefault(warmup.shape_of(model), []).append(model)
    for models in by_shape.values():
        yield from _report(models, layout, settings.batch_tokens, use_cache=settings.keep_tuning)


def _report(
    models: Sequence[OpenedModel], layout: SlotLayout, batch_tokens: int | None, *, use_cache: bool
) -> Iterator[str]:
    """Yield the lines for models of one shape, measured on the first."""
    model = models[0]
    manifest = model.bundle.manifest
    yield ""
    yield (
        f"{', '.join(each.name for each in models)}: {manifest.precision}, {manifest.num_hidden_layers} layers of "
        f"{manifest.hidden_size}"
    )
    curve = warmup.measure_curve(model, layout, CURVE_S)
    texts = time_texts(model.engine, model.multi_slot_engine, manifest.max_position_embeddings)
    yield f"  texts of {warmup.text_tokens(model)} tokens in a batch        one text alone"
    yield f"  tokens       ms   tokens/s      1 slot ms   {layout.slots_for_one_text} slots ms"
    yield from (_row(batch, text) for batch, text in zip_longest(curve, texts))
    multi_slot_tokens = next((text.tokens for text in texts if text.is_multi_slot_worthwhile), None)
    if batch_tokens is not None:
        budget = f"batches of {batch_tokens} tokens (batch_tokens)"
    else:
        full = cost_curve.knee(curve, cost_curve.FULL)
        budget = f"batches of {cost_curve.knee(curve)} tokens, of {full} under load"
    yield f"  {budget}; {_single_text_advice(multi_slot_tokens, layout)}"
    measured = Measurement(tuple(curve), multi_slot_tokens)
    if not warmup.is_steady(measured):
        yield "  not cached, other programs used the cores: measure again when the machine is quiet"
    elif use_cache:
        yield from _cache(models, layout, measured)


def _row(batch: CostPoint | None, text: TextTiming | None) -> str:
    """Return a line of the table: a batch size beside a text's length."""
    left = right = ""
    if batch is not None:
        left = f"{batch.tokens:8,} {1000 * batch.seconds:8.2f} {batch.tokens_per_s:10,.0f}"
    if text is not None:
        multi_slot = "-" if text.multi_slot_ms is None else f"{text.multi_slot_ms:.2f}"
        right = f"{text.one_slot_ms:14.2f} {multi_slot:>13}"
    return f"{left:28}{right}"


def _cache(models: Sequence[OpenedModel], layout: SlotLayout, measured: Measurement) -> Iterator[str]:
    """Cache a measurement for each of the models, and say where."""
    for model in models:
        file = tuning_cache.cache_file(model.bundle)
        written = tuning_cache.write(model.bundle, warmup.machine_of(model, layout), measured)
        yield f"  cached in {file}" if written else f"  not cached: {file} cannot be written"


def _single_text_advice(from_tokens: int | None, layout: SlotLayout) -> str:
    if from_tokens is None:
        return "a lone text takes one slot"
    return f"a lone text takes {layout.slots_for_one_text} slots from {from_tokens} tokens"
