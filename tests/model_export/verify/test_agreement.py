"""Agreement of two graphs on unlabelled texts: answers and rankings."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.errors import ParityError
from model_export.verify.agreement import Changes, answers_of, check_agreement, label_changes
from tests.support.checkpoints import SPECS, checkpoint_and_texts, write_checkpoint

ALLOWED = 0.05


def test_answers_of_questions_are_compared(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["qa"])
    _, texts = checkpoint_and_texts(tmp_path)
    expected = [
        np.random.default_rng(n).standard_normal((len(t), 2)).astype(np.float32) for n, t in enumerate(texts)
    ]
    measured = check_agreement(SPECS["qa"], texts, expected, [x * 2 for x in expected], ALLOWED)
    assert measured["answers"] == len(texts) > 50
    changed = [x.copy() for x in expected]
    for number in (3, 5):
        changed[number][0] = 50  # of [CLS]: no answer
    assert answers_of(SPECS["qa"], texts, changed)[5] is None
    refused = rf"2 of {len(texts)} answers differ .* at most 7.5% of all \(95% sure\), and 5.0% is allowed"
    with pytest.raises(ParityError, match=refused):
        check_agreement(SPECS["qa"], texts, expected, changed, ALLOWED)


def test_a_part_of_the_texts_must_show_more_than_all() -> None:
    few, many = Changes("labels", 606, 4), Changes("labels", 606, 5)
    assert few.are_surely_few(0.02) and not many.are_surely_few(0.02) and many.at_most <= 0.02


def test_likeness_and_numbers_are_compared_by_rank() -> None:
    rng = np.random.default_rng(0)
    vectors = [x[None] / np.linalg.norm(x) for x in rng.standard_normal((40, 8)).astype(np.float32)]
    noise = [0.5 * rng.standard_normal((1, 8)).astype(np.float32) for _ in vectors]
    far = [a + b for a, b in zip(vectors, noise, strict=True)]
    measured = check_agreement(SPECS["similarity"], [], vectors, vectors, ALLOWED)
    assert measured["rank_correlation"] == pytest.approx(1)
    with pytest.raises(
        ParityError, match=r"rank correlation with the checkpoint's scores is 0\.\d+, and 0\.995"
    ):
        check_agreement(SPECS["similarity"], [], vectors, far, ALLOWED)
    numbers = [np.array([[x]], np.float32) for x in (1, 2, 3, 4)]
    assert check_agreement(SPECS["regression"], [], numbers, numbers, ALLOWED)["rank_correlation"] == 1
    with pytest.raises(ParityError):
        check_agreement(SPECS["regression"], [], numbers, numbers[::-1], ALLOWED)


def test_of_several_numbers_each_keeps_its_ranking() -> None:
    spec = replace(SPECS["regression"], labels=("clarity", "depth"))
    rows = [np.array([[x, 9 - x]], np.float32) for x in (1, 2, 3, 4)]
    assert check_agreement(spec, [], rows, rows, ALLOWED)["rank_correlation"] == 1
    for other in (lambda x: -x, lambda x: np.nan):
        changed = [np.array([[row[0, 0], other(row[0, 1])]], np.float32) for row in rows]
        with pytest.raises(ParityError, match="rank correlation"):
            check_agreement(spec, [], rows, changed, ALLOWED)


def test_what_nothing_tells_of_is_not_taken() -> None:
    with pytest.raises(ParityError, match="nothing tells how good a fill_mask model stays"):
        check_agreement(SPECS["fill_mask"], [], [], [], ALLOWED)


def test_of_choices_the_best_of_each_prompt_is_compared() -> None:
    before = [np.array([[x]], np.float32) for x in (1, 4, 2, 3, 9, 8, 7, 6)]
    coarse = [x * 2 + 1 for x in before]
    assert label_changes(SPECS["multiple_choice"], before, coarse) == Changes("labels", 2, 0)
    coarse[5] += 3
    assert label_changes(SPECS["multiple_choice"], before, coarse) == Changes("labels", 2, 1)
    assert check_agreement(SPECS["multiple_choice"], [], before, coarse, ALLOWED) == {}
