"""The proof that a graph answers as its checkpoint does: alone, among other texts, and on labelled data."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert.errors import ParityError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from model_export.reference import Floats, Reference
from model_export.verify.agreement import label_changes
from model_export.verify.dev_score import DevSet
from model_export.verify.texts import Text
from model_export.verify.tolerance import Tolerance

Run = Callable[[Sequence[Text]], list[Floats]]

_JUDGED = {"fp32": "largest_difference", "fp16": "scaled_difference", "int8": "largest_difference"}


def references(reference: Reference, texts: Sequence[Text]) -> list[Floats]:
    """Return what the checkpoint itself answers, text by text."""
    return [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]


def check_parity(
    precision: str,
    spec: TaskSpec,
    expected: Sequence[Floats],
    alone: Sequence[Floats],
    packed: Sequence[Floats],
    tolerance: Tolerance,
    in_numpy: Sequence[Floats] | None = None,
) -> dict[str, Any]:
    """Compare each text's scores, run alone and packed with others, with the checkpoint's.

    `in_numpy` are the written graph's own where something like it had to run in its stead. Returns what was
    measured. Raises ParityError with the numbers if something passes its tolerance.
    """
    task = TASKS[spec.task]
    found = [outputs for outputs in (alone, packed, in_numpy) if outputs is not None]
    measured: dict[str, Any] = {
        "texts": len(expected),
        "largest_difference": max(_largest(expected, outputs) for outputs in found),
        "scaled_difference": max(
            _largest(_scaled(expected, expected), _scaled(outputs, expected)) for outputs in found
        ),
        "relative_error": max(_relative_error(expected, outputs) for outputs in found),
        "neighbours_difference": _largest(task.probabilities(alone, spec), task.probabilities(packed, spec)),
    }
    # Scores of a whole vocabulary go up to 20, where float32 itself has steps of 2e-6 and sums of hundreds of them.
    judged = "scaled_difference" if task.head is Head.VOCABULARY else _JUDGED[precision]
    checks = [
        (judged, tolerance.difference, "the scores differ from the checkpoint's by"),
        ("neighbours_difference", tolerance.neighbours, "other texts in a batch change the answers by"),
    ]
    if precision == "int8":
        checks.append(("relative_error", tolerance.relative_error, "the scores' relative error is"))
    for name, allowed, what in checks:
        if not measured[name] <= allowed:  # also false for nan
            fact = f"{what} {measured[name]:.2g}, and {allowed:g} is allowed"
            raise ParityError(fact, advice(precision), measured)
    measured["tolerance"] = {name: allowed for name, allowed, _ in checks if np.isfinite(allowed)}
    return measured


def check_score(
    precision: str, spec: TaskSpec, dev: DevSet, before: Run | None, after: Run, tolerance: Tolerance
) -> dict[str, Any]:
    """Score both graphs on labelled data; raises ParityError if the score drops.

    `before` None: `after` is the float32 graph itself, and is run once.
    """
    new = after(dev.texts)
    old = new if before is None else before(dev.texts)
    scores = {"before": dev.score(old), "after": dev.score(new)}
    measured = {"metric": dev.metric, "texts": len(dev.texts), **scores}
    measured["before_is"] = "the same graph" if before is None else "the checkpoint's float32 graph"
    drop = scores["before"] - scores["after"]
    if not drop <= tolerance.score_drop:
        raise ParityError(
            f"{dev.metric} falls from {scores['before']:.4f} to {scores['after']:.4f}, and "
            f"{tolerance.score_drop:g} is allowed",
            advice(precision),
            measured,
        )
    if precision == "int8" and (changes := label_changes(spec, old, new)):
        measured |= changes.to_dict()
    return measured


def advice(precision: str) -> str:
    """Return what to do when a graph fails."""
    if precision == "fp32":
        return "Nothing was written; this is a bug of bert-export, or the checkpoint holds extreme weights."
    return (
        f"Nothing was written; export with --precision fp32, or allow more with --tolerance-* ({precision})."
    )


def _scaled(outputs: Sequence[Floats], by: Sequence[Floats]) -> list[Floats]:
    """Divide each text's scores by the largest of `by`'s, if that is above 1."""
    return [x / max(1.0, float(np.abs(scale).max())) for x, scale in zip(outputs, by, strict=True)]


def _largest(first: Sequence[Floats], second: Sequence[Floats]) -> float:
    return float(np.abs(_joined(first) - _joined(second)).max())


def _relative_error(expected: Sequence[Floats], found: Sequence[Floats]) -> float:
    a, b = _joined(expected), _joined(found)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-12))


def _joined(outputs: Sequence[Floats]) -> Floats:
    return np.concatenate([x.reshape(-1) for x in outputs])
