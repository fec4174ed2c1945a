"""What a report says of one held-out file, and how its texts are cut to size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MISTAKES_SHOWN = 20
EXCERPT = 300
"""Code points of a text that a report shows."""
TRUNCATED = "_truncated"
"""End of the name of a score over texts that are cut, beside the one over all of their windows."""


@dataclass(frozen=True)
class Mistake:
    """One example that came out wrong. `confidence` is the model's score of its own answer."""

    id: str
    text: str
    gold: str
    predicted: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The scores of the best prediction that does not look at the text."""

    rule: str
    """Description of the prediction, such as "always 'positive'"."""
    scores: Mapping[str, float]
    """Name of a score of the task → its value."""


@dataclass(frozen=True)
class Findings:
    """What there is to know of one held-out file beside its scores."""

    examples: int
    wrong: int
    mistakes: tuple[Mistake, ...]
    """The worst first, at most twenty."""
    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Class or entity type -> precision, recall, f1 (shares of 1), support."""
    counts: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    confusion: NDArray[np.int64] | None = None
    """(K, K): row gold, column predicted, in the order of `labels`."""
    never_predicted: tuple[str, ...] = ()
    """Classes that gold labels have and no prediction has."""


def class_scores(both: int, gold: int, given: int) -> dict[str, float]:
    """Return one class's scores from its counts: right, in gold, in the predictions."""
    f1 = 2 * both / (gold + given) if gold + given else 0.0
    return {"precision": both / max(given, 1), "recall": both / max(gold, 1), "f1": f1, "support": gold}


def excerpt(text: str) -> str:
    """Cut a text to what a report shows."""
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def shown(mistakes: Sequence[Mistake]) -> tuple[Mistake, ...]:
    """Return the first mistakes, as many as a report shows."""
    return tuple(mistakes[:MISTAKES_SHOWN])
