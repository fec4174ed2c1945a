"""How far a graph may be from its checkpoint."""

from dataclasses import dataclass
from typing import Final

from bert.tasks.registry import TASKS

AUTO: Final = "auto"
"""Name of the precision that is chosen by measuring (`auto_precision.py`)."""

_DIFFERENCE = {"fp32": 1e-4, "fp16": 1e-2, "int8": float("inf")}
_NEIGHBOURS = {"fp32": 1e-5, "fp16": 1e-2, "int8": 1e-3}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Beyond one of these a bundle is not written."""

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
