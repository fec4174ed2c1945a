"""`--precision auto`: the fastest graph on this machine of those that answer as the checkpoint does.

With CUDA that is fp16, without it int8; where they are refused, fp32. What was tried, what it measured and why one was
taken goes into the manifest's `choice`.
"""

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from bert.encoding import Encoding
from bert.errors import ExportError, ParityError
from bert.manifest import CUDA
from bert.processor import instructions
from model_export.progress import say, step
from model_export.verify.agreement import check_agreement
from model_export.verify.parity import AUTO, Tolerance
from model_export.verify.precision import Exporter
from model_export.verify.texts import EncodedText, make_text
from model_export.verify.verified_graph import ExportContext, VerifiedGraph, build, prove

SMALLEST_SPEEDUP = 1.1
"""Smallest speed-up over fp32 for which int8 is taken; less is within the noise of a busy machine."""

SHAPES = ((1, 32), (8, 64))
"""Texts and the tokens of each: a request alone, and a batch under load."""
SECONDS = 0.4
"""Seconds for each shape and all graphs together, unless ROUNDS[0] rounds take longer."""
ROUNDS = (2, 40)  # at least, at most
THREADS = (
    1  # two threads on a shared machine wait for one another, and the service's default is a core an engine
)

Milliseconds = dict[str, float]
"""Batch, such as "8 x 64" → the time that it takes."""
Times = dict[str, Milliseconds]
"""Precision → its times."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """The graph to write, why, and the float32 one where that is another."""

    taken: VerifiedGraph
    record: Record
    """The manifest's `choice`."""
    float32: VerifiedGraph | None = None


def tried(precision: str) -> tuple[str, ...]:
    """Return the precisions whose graphs are built for one that is asked for, if none is refused."""
    if precision != AUTO:
        return (precision,)
    return ("fp16",) if CUDA in ort.get_available_providers() else ("fp32", "int8")


def choose(context: ExportContext, tolerance_of: Callable[[str], Tolerance]) -> Choice:
    """Build, prove and time graphs; return the one to write.

    Raises ParityError where fp32 does not answer as the checkpoint either.
    """
    if CUDA in ort.get_available_providers():
        return _half_or_float32(context, tolerance_of)
    return _eight_bits_or_float32(context, tolerance_of)


def _half_or_float32(context: ExportContext, tolerance_of: Callable[[str], Tolerance]) -> Choice:
    """Take fp16 if it is near enough. It is not timed: fp32 is written for the CPU, and would not run beside it."""
    tried: Record = {"fp16": {}}
    try:
        half = prove(context, build(context, "fp16"), tolerance_of("fp16"))
        tried["fp16"] = _numbers(half)
        return Choice(half, _record(tried, "fp16 is within tolerance, and onnxruntime has CUDA"))
    except ExportError as error:
        why = _refuse(tried["fp16"], "fp16", error)
    float32 = prove(context, build(context, "fp32"), tolerance_of("fp32"))
    return Choice(float32, _record(tried | {"fp32": _numbers(float32)}, why))


def _eight_bits_or_float32(context: ExportContext, tolerance_of: Callable[[str], Tolerance]) -> Choice:
    """Take int8 if it is near enough and faster."""
    float32 = prove(context, build(context, "fp32"), tolerance_of("fp32"))
    tried: Record = {"fp32": _numbers(float32), "int8": {}}
    try:
        graph = build(context, "int8")
        with step("timing both", context.costs.timing()):
            graphs = {"fp32": float32.exported, "int8": graph}
            times = time_graphs(graphs, context.texts, context.checkpoint.spec.task)
        for precision, milliseconds in times.items():
            tried[precision]["milliseconds"] = milliseconds
        int8 = prove(context, graph, tolerance_of("int8"))
        tried["int8"] |= _numbers(int8)
        if not int8.dev_score:
            spec, judged, allowed = context.checkpoint.spec, int8.judged, tolerance_of("int8").changed_share
            tried["int8"]["agreement"] = check_agreement(
                spec, judged.texts, judged.before, judged.after, allowed(spec.task)
            )
        factor = check_speed(times)
    except ExportError as error:
        return Choice(float32, _record(tried, _refuse(tried["int8"], "int8", error)))
    how = (
        f"by its {int8.dev_score['metric']}"
        if int8.dev_score
        else "on unlabelled texts; --dev judges by score"
    )
    why = f"int8 is {factor:.1f} times as fast as fp32, and within tolerance ({how})"
    return Choice(int8, _record(tried, why), float32)


def check_speed(times: Times) -> float:
    """Return how many times as fast int8 is; raises ExportError if that is not worth it."""
    factor = speedup(times["fp32"], times["int8"])
    if not factor >= SMALLEST_SPEEDUP:
        raise ExportError(
            f"it is {factor:.2f} times as fast as fp32 here, and {SMALLEST_SPEEDUP:g} is asked for"
        )
    return factor


def _refuse(tried: Record, precision: str, error: ExportError) -> str:
    """Note why one is refused; returns it in a sentence."""
    why = str(error)
    if isinstance(error, ParityError):
        why = error.fact
        # JSON has no nan, which broken weights give.
        tried["measured"] = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in error.measured.items()
        }
    tried["refused"] = why
    return f"{precision} is refused: {why}"


def _numbers(candidate: VerifiedGraph) -> Record:
    return {"parity": candidate.parity, "dev_score": candidate.dev_score}


def _record(tried: Record, why: str) -> Record:
    say(f"  {why}")
    machine = {
        "architecture": platform.machine(),
        "instructions": instructions(),
        "threads": THREADS,
        "onnxruntime": ort.__version__,
    }
    return {"asked": AUTO, "why": why, "tried": tried, "machine": machine}


def time_graphs(graphs: Mapping[str, Exporter], texts: Sequence[EncodedText], task: str) -> Times:
    """Return each graph's milliseconds for each of SHAPES, of one thread."""
    found: Times = {name: {} for name in graphs}
    longest = max(map(len, texts))  # what a model of few positions still reads
    for count, tokens in SHAPES:
        text = _text_of(texts, min(tokens, longest), task)
        runs = [partial(graph.run, [text] * count) for graph in graphs.values()]
        for name, best in zip(graphs, best_milliseconds(runs), strict=True):
            found[name][f"{count} x {tokens}"] = round(best, 3)
    return found


def best_milliseconds(
    runs: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the best time of each of `runs`.

    They take turns, so that a busy moment slows all of them; and what a busy machine adds is not in the best, nor is what
    the first run takes to fetch memory.
    """
    times: list[list[float]] = [[] for _ in runs]
    begin, (fewest, most) = clock(), ROUNDS
    while len(times[0]) < fewest or (len(times[0]) < most and clock() - begin < SECONDS):
        for run, taken in zip(runs, times, strict=True):
            start = clock()
            run()
            taken.append(clock() - start)
    return [min(taken) * 1000 for taken in times]


def speedup(slow: Milliseconds, fast: Milliseconds) -> float:
    """Return how many times as fast one graph is as the other: the geometric mean over the batches."""
    return float(np.exp(np.mean([np.log(slow[batch] / fast[batch]) for batch in slow])))


def _text_of(texts: Sequence[EncodedText], tokens: int, task: str) -> EncodedText:
    """Return a text of so many tokens, made of real ones; each a word of its own."""
    ids = np.resize(np.concatenate([text.encoding.ids for text in texts]), tokens)
    zeros, words = np.zeros(tokens, np.int32), np.arange(tokens, dtype=np.int32)
    text = make_text(Encoding(ids, zeros, np.zeros((tokens, 2), np.int32), words, zeros), task)
    # Masks are not words, so none are found: one is enough here.
    return text if len(text.positions) else EncodedText(text.encoding, np.zeros(1, np.intp))
