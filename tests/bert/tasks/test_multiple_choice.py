"""Choices by their probability, and the best choice of each prompt."""

import numpy as np
import pytest

from bert.tasks.multiple_choice import ScoredChoice, decode
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Floats

TASK, SPEC = TASKS["multiple_choice"], TaskSpec("multiple_choice")


def scores(*values: float) -> list[Floats]:
    return [np.array([[value]], np.float32) for value in values]


def test_scores_become_probabilities_best_first() -> None:
    found = decode(scores(0.0, np.log(6), np.log(3)))
    assert [choice.index for choice in found] == [1, 2, 0]
    assert [choice.score for choice in found] == pytest.approx([0.6, 0.3, 0.1])


def test_equal_choices_keep_their_order() -> None:
    assert decode(scores(2.0, 2.0)) == [ScoredChoice(0, 0.5), ScoredChoice(1, 0.5)]


def test_top_k_keeps_the_best() -> None:
    assert decode(scores(1.0, 3.0, 2.0), 2) == decode(scores(1.0, 3.0, 2.0))[:2]


def test_large_scores_do_not_overflow() -> None:
    assert [choice.score for choice in decode(scores(300.0, -300.0))] == [1.0, 0.0]


def test_export_judges_the_best_of_each_four() -> None:
    found = scores(1, 4, 2, 3, 9, 8, 7, 6)
    best = TASK.top_labels(found)
    assert best is not None and best.tolist() == [1, 0]
    first, second = TASK.probabilities(found, SPEC)
    assert first.sum() == pytest.approx(1) and second.argmax() == 0
