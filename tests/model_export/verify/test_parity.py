"""What is compared, and what is refused."""

import numpy as np
import pytest
from scipy.stats import beta

from bert.errors import ParityError
from bert.tasks.spec import TaskSpec
from model_export.reference import Floats
from model_export.verify.agreement import Changes, can_show, label_changes, upper_bound
from model_export.verify.parity import Tolerance, check_parity, check_score
from model_export.verify.texts import few_of
from tests.support.checkpoints import SPECS, random_text

SPEC = SPECS["classification"]
EXPECTED = [np.array([[1.0, -2.0, 0.5]], np.float32), np.array([[0.1, 4.0, 0.0]], np.float32)]


def changed(by: float) -> list[Floats]:
    return [outputs + np.float32(by) for outputs in EXPECTED]


def parity(precision: str, alone: list[Floats], packed: list[Floats], spec: TaskSpec = SPEC) -> None:
    check_parity(precision, spec, EXPECTED, alone, packed, Tolerance.of(precision))


def test_equal_scores_pass_and_are_reported() -> None:
    measured = check_parity("fp32", SPEC, EXPECTED, EXPECTED, EXPECTED, Tolerance.of("fp32"))
    assert measured["largest_difference"] == 0 and measured["texts"] == 2
    assert measured["tolerance"] == {"largest_difference": 1e-4, "neighbours_difference": 1e-5}


def test_a_difference_past_the_tolerance_is_refused_with_its_size() -> None:
    with pytest.raises(ParityError, match=r"differ from the checkpoint's by 0.0002, and 0.0001 is allowed"):
        parity("fp32", changed(2e-4), changed(2e-4))


def test_each_way_of_running_counts() -> None:
    for alone, packed in [(EXPECTED, changed(2e-4)), (changed(2e-4), EXPECTED)]:
        with pytest.raises(ParityError):
            parity("fp32", alone, packed)
    with pytest.raises(ParityError):
        check_parity("fp16", SPEC, EXPECTED, EXPECTED, EXPECTED, Tolerance.of("fp16"), changed(0.1))


def test_neighbours_may_change_less_than_the_checkpoint_is_away() -> None:
    moved = [EXPECTED[0] + np.array([[9e-5, 0, 0]], np.float32), EXPECTED[1]]
    with pytest.raises(ParityError, match=r"other texts .* change the answers by 2\.2e-05, and 1e-05"):
        parity("fp32", EXPECTED, moved)
    parity("fp32", EXPECTED, changed(9e-5))  # all scores together: the probabilities stay


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ParityError):
        parity("fp16", changed(np.nan), changed(np.nan))


def test_half_precision_is_measured_relative_to_large_scores() -> None:
    large = [np.array([[30.0, 1.0, 0.0]], np.float32)]
    near = [large[0] + np.array([[0.2, 0.1, 0.0]], np.float32)]
    check_parity("fp16", SPEC, large, near, near, Tolerance.of("fp16"))
    with pytest.raises(ParityError):
        check_parity("fp32", SPEC, large, near, near, Tolerance.of("fp32"))


def test_scores_of_a_whole_vocabulary_are_measured_relative_to_the_largest() -> None:
    large = [np.array([[20.0, -8.0, 0.0, 3.0]], np.float32)]
    near = [large[0] + np.array([[1e-3, 0, 0, 0]], np.float32)]
    check_parity("fp32", SPECS["fill_mask"], large, large, near, Tolerance.of("fp32", neighbours=1e-3))
    with pytest.raises(ParityError):
        check_parity("fp32", SPECS["fill_mask"], large, large, [large[0] + 0.01], Tolerance.of("fp32"))


def many(flips: int) -> tuple[list[Floats], list[Floats]]:
    """Return scores of a thousand texts, and the same with so many labels changed by very little."""
    rng = np.random.default_rng(0)
    expected = [rng.standard_normal((1, 3)).astype(np.float32) for _ in range(1000)]
    found = [outputs.copy() for outputs in expected]
    for outputs in found[:flips]:
        outputs[0, outputs[0].argmin()] = outputs.max() + 1e-3
    return expected, found


@pytest.mark.parametrize(("changed", "count"), [(0, 1), (0, 60), (3, 60), (7, 700), (59, 60), (40, 20_000)])
def test_the_bound_is_that_of_clopper_and_pearson(changed: int, count: int) -> None:
    assert upper_bound(changed, count) == pytest.approx(
        beta.ppf(0.95, changed + 1, count - changed), abs=1e-9
    )


def test_everything_changed_bounds_nothing() -> None:
    assert upper_bound(5, 5) == 1 and not can_show(0, 0.5)


def test_eight_bits_may_change_at_most_two_percent_of_labels_for_sure() -> None:
    changes = label_changes(SPEC, *many(13))
    assert changes is not None and changes.to_dict() == {
        "labels": 1000,
        "changed_labels": 13,
        "changed_at_most": pytest.approx(0.0206, abs=1e-4),
    }
    with pytest.raises(
        ParityError, match=r"13 of 1000 labels .* at most 2.1% of all \(95% sure\), and 2.0% is"
    ):
        changes.check(Tolerance.of("int8").changed_share("classification"))
    Changes("labels", 1000, 12).check(Tolerance.of("int8").changed_share("classification"))


def test_few_texts_show_nothing_however_they_stay() -> None:
    with pytest.raises(ParityError, match=r"0 of 60 labels differ .* at most 4.9% of all"):
        Changes("labels", 60, 0).check(0.02)


def test_eight_bits_are_refused_where_the_graph_is_broken() -> None:
    with pytest.raises(ParityError, match="relative error"):
        parity("int8", changed(3.0), changed(3.0), SPECS["regression"])


class OneScore:
    """Labelled data whose score is the first output."""

    metric = "accuracy"
    texts = (random_text(SPEC, 5),)

    def score(self, outputs: list[Floats]) -> float:
        return float(outputs[0][0, 0])


def test_the_score_of_the_float32_graph_itself_is_told_apart() -> None:
    outputs = [np.array([[0.7, -1.0, -1.0]], np.float32)]
    found = check_score("fp32", SPEC, OneScore(), outputs, outputs, Tolerance.of("fp32"))  # type: ignore[arg-type]
    assert found["before"] == found["after"] and found["before_is"] == "the same graph"


@pytest.mark.parametrize(("after", "passes"), [(0.9, True), (0.896, True), (0.95, True), (0.89, False)])
def test_half_a_point_of_the_score_may_be_lost(after: float, passes: bool) -> None:
    def run(score: float) -> list[Floats]:
        return [np.array([[score, -1.0, -1.0]], np.float32)]

    def check() -> dict[str, object]:
        data = OneScore()
        tolerance = Tolerance.of("int8")
        return check_score("int8", SPEC, data, run(0.9), run(after), tolerance)  # type: ignore[arg-type]

    if passes:
        assert check()["after"] == pytest.approx(after)
    else:
        with pytest.raises(ParityError, match=r"accuracy falls from 0.9000 to 0.8900, and 0.005 is allowed"):
            check()


def test_few_texts_are_of_all_lengths() -> None:
    texts = [random_text(SPEC, tokens) for tokens in (9, 3, *range(10, 60), 100, 70)]
    assert [len(text) for text in few_of(texts, "classification")] == [3, 16, 23, 31, 38, 46, 53, 100]


def test_of_choices_all_or_none_are_among_the_few() -> None:
    texts = [random_text(SPECS["multiple_choice"], tokens) for tokens in (5, 6, 7, 8, *[20] * 4, 2, 3, 4, 5)]
    assert [len(text) for text in few_of(texts, "multiple_choice")] == [2, 3, 4, 5, 20, 20, 20, 20]
