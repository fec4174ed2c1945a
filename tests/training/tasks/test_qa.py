"""Scores of question answering, and the threshold of "no answer" that all held-out files share."""

from dataclasses import replace

import pytest

from bert.data.examples import QaExample
from bert.tasks.spec import TaskSpec
from tests.support.reading import character_tokenizer
from training.tasks.base import Evaluation
from training.tasks.qa import Predicted, QaFinetuning


def predicted(*rows: tuple[str, str, float]) -> Predicted:
    """Rows of right answer ("" for none), best answer, margin of null over it."""
    examples = [
        QaExample(str(number), "?", gold or "text", ((gold, 0),) if gold else (), "title")
        for number, (gold, _, _) in enumerate(rows)
    ]
    return Predicted(examples, [text for _, text, _ in rows], [margin for _, _, margin in rows])


@pytest.fixture
def task() -> QaFinetuning:
    task = QaFinetuning.__new__(QaFinetuning)  # scoring needs no tokenizer
    task.spec = TaskSpec("qa", max_tokens=64, allows_no_answer=True)
    return task


ALL_ANSWERED = predicted(("red", "red", -5.0), ("blue", "blue", -1.0), ("green", "wrong", 3.0))
SOME_WITHOUT = predicted(("pink", "pink", -6.0), ("", "x", -2.0), ("", "y", 2.0))


def looks(task: QaFinetuning, *files: Predicted) -> list[Evaluation]:
    return [Evaluation({}, None, file) for file in files]


def test_without_unanswerable_questions_nothing_is_tuned(task: QaFinetuning) -> None:
    assert task.tune(looks(task, ALL_ANSWERED)) == {}


def test_one_threshold_serves_all_files(task: QaFinetuning) -> None:
    alone = task.tune(looks(task, SOME_WITHOUT))["null_threshold"]
    assert -6.0 < alone < -2.0
    more = predicted(("blue", "blue", -1.0), ("red", "red", -1.5), ("green", "green", 1.0))
    together = task.tune(looks(task, more, SOME_WITHOUT))["null_threshold"]
    assert 1.0 < together < 2.0  # three right answers are worth more than one that should not have been given


def test_1_1_is_scored_with_an_answer_to_every_question_and_as_it_is_served(task: QaFinetuning) -> None:
    task.spec = replace(task.spec, null_threshold=-2.0)
    scores = task.rescore(Evaluation({}, None, ALL_ANSWERED)).scores
    assert scores["f1"] == pytest.approx(2 / 3) and scores["f1_served"] == pytest.approx(1 / 3)


def test_2_0_is_scored_by_the_threshold(task: QaFinetuning) -> None:
    task.spec = replace(task.spec, null_threshold=-4.0)
    assert task.rescore(Evaluation({}, None, SOME_WITHOUT)).scores["f1"] == 1.0
    task.spec = replace(task.spec, null_threshold=0.0)
    assert task.rescore(Evaluation({}, None, SOME_WITHOUT)).scores["f1"] == pytest.approx(2 / 3)


def test_each_epoch_learns_the_answer_of_another_annotator() -> None:
    spec = TaskSpec("qa", max_tokens=64)
    answers = (("red", 0), ("red house", 0), ("house", 4))
    asked = QaFinetuning(character_tokenizer(), spec)
    (feature,) = asked.features([QaExample("q", "what", "red house", answers, "")])
    targets = [feature.in_epoch(epoch).target for epoch in range(4)]
    assert len(set(targets)) == 3 and targets[3] == targets[0] == feature.target
    assert targets[1][0] == targets[0][0] and targets[1][1] == targets[2][1]
    (single,) = asked.features([QaExample("q", "what", "red house", (), "")])
    assert single.in_epoch(5).target == (0, 0)
