"""Multiple choice: a prompt with each of its choices makes a pair, and each pair has one score. C choices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats, Head, Reads, Task, softmax


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """A choice's index in the request and its probability among the choices of its prompt."""

    index: int
    score: float


def decode(scores: Sequence[Floats], top_k: int | None = None) -> list[ScoredChoice]:
    """Turn the scores (1, 1) of C choices of one prompt into probabilities, best first; equal ones keep their order.

    Returns at most `top_k` (None: all).
    """
    shares = softmax(np.concatenate(scores).reshape(-1))
    order = np.argsort(-shares, kind="stable")[:top_k]
    return [
        ScoredChoice(index, score)
        for index, score in zip(order.tolist(), shares[order].tolist(), strict=True)
    ]


class MultipleChoice(Task):
    """One score for each choice."""

    name = "multiple_choice"
    head = Head.POOLED
    architectures = ("BertForMultipleChoice",)
    fixed_outputs = 1
    fixed_reads = Reads.CHOICES
    has_one_position = True
    judged_together = 4

    def probabilities(self, outputs: Sequence[Floats], spec: TaskSpec) -> list[Floats]:
        """Return the probability of each choice among its prompt's."""
        return [softmax(scores) for scores in self._by_prompt(outputs)]

    def top_labels(self, outputs: Sequence[Floats]) -> NDArray[np.intp] | None:
        """Return the best choice of every prompt."""
        return np.array([scores.argmax() for scores in self._by_prompt(outputs)], np.intp)

    def _by_prompt(self, outputs: Sequence[Floats]) -> list[Floats]:
        """Return the scores (C,) of each prompt, whose choices follow one another."""
        scores, size = np.concatenate(outputs).reshape(-1), self.judged_together
        return [scores[start : start + size] for start in range(0, len(scores), size)]
