"""Comparison of a graph with its checkpoint: alone, among other texts, and on labelled data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bert.errors import ParityError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from model_export.reference import Floats
from model_export.verify.agreement import label_changes
from model_export.verify.dev_score import DevSet

AUTO: Final = "auto"
"""Name of the precision that is chosen by measuring (`auto_precision.py`)."""

_DIFFERENCE = {"fp32": 1e-4, "fp16": 1e-2, "int8": float("inf")}
_NEIGHBOURS = {"fp32": 1e-5, "fp16": 1e-2, "int8": 1e-3}
_JUDGED = {"fp32": "largest_difference", "fp16": "scaled_difference", "int8": "largest_difference"}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits of a graph's differences. A graph that exceeds one is not written."""

    difference: float
    """Largest difference of one score from the checkpoint's. In fp16, whose steps grow with the value (0.008 from 8
    on), as a share of the text's largest score where that is above 1. 8 bits are judged by labels, relative error,
    and the score on labelled data."""
    neighbours: float
    """Largest difference that the other texts of a batch may make to an answer: to a probability or a vector."""
    same_labels: float | None = None
    """int8: share of answers that must stay, a label for each text (NER: each word) or what a question is told; None takes
    that of the task."""
    score_drop: float = 0.005
    """Largest drop of the score on labelled data, 0 to 1."""
    relative_error: float = 0.15
    """int8: of all scores together (root mean square); catches a graph that is broken, not one that is coarse."""

    @classmethod
    def of(
        cls,
        precision: str,
        difference: float | None = None,
        neighbours: float | None = None,
        same_labels: float | None = None,
        score_drop: float = 0.005,
    ) -> "Tolerance":
        """Return a precision's tolerances; None takes its own."""
        return cls(
            _DIFFERENCE[precision] if difference is None else difference,
            _NEIGHBOURS[precision] if neighbours is None else neighbours,
            same_labels,
            score_drop,
        )

    def changed_share(self, task: str) -> float:
        """Return the largest share of answers that may be changed."""
        same = TASKS[task].kept_share if self.same_labels is None else self.same_labels
        return 1 - same


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
    # Scores of a whole vocabulary go up to 20, where float32 itself has steps of 2e-6 and sums of hundreds of them, and
    # vectors that are not of length 1 may go further.
    is_large = task.head is Head.VOCABULARY or (task.embeds and not spec.normalize and precision == "fp32")
    judged = "scaled_difference" if is_large else _JUDGED[precision]
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
    precision: str,
    spec: TaskSpec,
    dev: DevSet,
    before: Sequence[Floats],
    after: Sequence[Floats],
    tolerance: Tolerance,
) -> dict[str, Any]:
    """Score outputs for labelled data before and after; raises ParityError if the score drops.

    `before` are the float32 graph's outputs, the same object as `after` where that graph itself is scored.
    """
    scores = {"before": dev.score(before), "after": dev.score(after)}
    measured = {"metric": dev.metric, "texts": len(dev.texts), **scores}
    measured["before_is"] = "the same graph" if before is after else "the checkpoint's float32 graph"
    if not scores["before"] - scores["after"] <= tolerance.score_drop:
        raise ParityError(
            f"{dev.metric} falls from {scores['before']:.4f} to {scores['after']:.4f}, and "
            f"{tolerance.score_drop:g} is allowed",
            advice(precision),
            measured,
        )
    if precision == "int8" and (changes := label_changes(spec, before, after)):
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
