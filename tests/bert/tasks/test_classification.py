"""Labels and scores of texts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from bert.tasks import classification
from bert.tasks.classification import Activation, Classification, Scoring, WindowMerge
from bert.tasks.spec import TaskSpec

TOPICS = TaskSpec("classification", ("sport", "politics", "weather"))
TAGS = TaskSpec("classification", ("sport", "politics", "weather"), problem_type="multi_label")
NUMBER = TaskSpec("classification", ("similarity",), problem_type="regression", pair=True)
ROWS = st.lists(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3), max_size=5)


def logits_of(*rows: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(rows, np.float32).reshape(len(rows), -1)


@given(ROWS)
def test_one_label_of_several_has_the_softmax_of_its_logit(rows: list[list[float]]) -> None:
    results = classification.decode(np.array(rows, np.float32).reshape(-1, 3), TOPICS)
    assert len(results) == len(rows)
    for row, result in zip(rows, results, strict=True):
        expected = dict(zip(TOPICS.labels, special.softmax(row), strict=True))
        assert dict(result.scores) == pytest.approx(expected, abs=1e-6)
        assert [s for _, s in result.scores] == sorted((s for _, s in result.scores), reverse=True)
        assert (result.label, result.score) == result.scores[0]


def test_labels_that_do_not_exclude_one_another_have_sigmoids() -> None:
    (result,) = classification.decode(logits_of([2.0, -1.0, 3.0]), TAGS)
    assert [label for label, _ in result.scores] == ["weather", "sport", "politics"]
    assert [s for _, s in result.scores] == pytest.approx(special.expit([3.0, 2.0, -1.0]))
    assert result.label == "weather"


def test_regression_gives_the_number_itself() -> None:
    assert classification.decode(logits_of([3.25]), NUMBER) == [
        Classification("similarity", 3.25, (("similarity", 3.25),))
    ]


def test_a_regression_of_several_numbers_gives_each_by_its_label() -> None:
    numbers = TaskSpec("classification", ("clarity", "depth", "wit"), problem_type="regression")
    (result,) = classification.decode(logits_of([3.25, -1.5, 40.0]), numbers)
    assert result.scores == (("wit", 40.0), ("clarity", 3.25), ("depth", -1.5))
    (result,) = classification.decode(logits_of([3.25, -1.5, 40.0]), numbers, Scoring(top_k=1))
    assert result.scores == (("wit", 40.0),)
    with pytest.raises(ValueError, match=r"needs \(N, 3\)"):
        classification.decode(logits_of([1.0]), numbers)


def test_top_k_cuts_the_list_and_not_the_label() -> None:
    (result,) = classification.decode(logits_of([0.0, 5.0, 1.0]), TOPICS, Scoring(top_k=2))
    assert [label for label, _ in result.scores] == ["politics", "weather"]
    (result,) = classification.decode(logits_of([0.0, 5.0, 1.0]), TOPICS, Scoring(top_k=99))
    assert len(result.scores) == 3


def test_equal_scores_keep_the_order_of_the_labels() -> None:
    (result,) = classification.decode(logits_of([1.0, 1.0, 1.0]), TOPICS)
    assert [label for label, _ in result.scores] == list(TOPICS.labels)


def test_scores_are_plain_python_numbers() -> None:
    (result,) = classification.decode(logits_of([0.0, 5.0, 1.0]), TOPICS)
    assert type(result.score) is float


def test_no_texts_give_no_results() -> None:
    assert classification.decode(np.zeros((0, 3), np.float32), TOPICS) == []


@pytest.mark.parametrize("shape", [(2, 4), (3,), (1, 2, 3)])
def test_logits_that_do_not_fit_the_labels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs \(N, 3\)"):
        classification.decode(np.zeros(shape, np.float32), TOPICS)


def test_predictions_are_what_the_metrics_read() -> None:
    logits = logits_of([2.0, -1.0, 3.0], [0.0, 0.0, -9.0])
    np.testing.assert_array_equal(classification.predict(logits, TOPICS), [2, 0])
    np.testing.assert_array_equal(classification.predict(logits, TAGS), [[1, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(classification.predict(logits, TAGS, 0.6), [[1, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(classification.predict(logits[:, :1], NUMBER), [2.0, 0.0])


def test_an_activation_that_is_named_makes_the_scores() -> None:
    logits = np.array([[0.0, 2.0]], np.float32)
    spec = TaskSpec("classification", ("no", "yes"), activation="sigmoid")
    assert classification.decode(logits, spec)[0].scores[1] == ("no", 0.5)
    number = TaskSpec("classification", ("score",), "regression", activation="sigmoid")
    assert classification.decode(np.zeros((1, 1), np.float32), number)[0].score == 0.5
    assert classification.predict(np.zeros((1, 1), np.float32), number).tolist() == [0.5]
    plain = TaskSpec("classification", ("score",), "regression")
    assert classification.decode(np.full((1, 1), 7, np.float32), plain)[0].score == 7


@given(ROWS, st.floats(0.05, 100))
def test_logits_are_divided_by_the_temperature(rows: list[list[float]], temperature: float) -> None:
    logits = np.array(rows, np.float32).reshape(-1, 3)
    for spec, function in ((TOPICS, special.softmax), (TAGS, special.expit)):
        results = classification.decode(logits, spec, Scoring(temperature=temperature))
        for row, result in zip(logits, results, strict=True):
            scores = function(row.astype(np.float64) / temperature)
            expected = dict(zip(spec.labels, scores.tolist(), strict=True))
            assert dict(result.scores) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("spec", [TOPICS, TAGS])
def test_any_temperature_gives_probabilities(spec: TaskSpec) -> None:
    logits = logits_of([-50.0, 20.0, 0.0])
    for temperature in (5e-324, 1e-300, 1e-9, 100.0):
        (result,) = classification.decode(logits, spec, Scoring(temperature=temperature))
        assert result.label == "politics"
        assert all(0 <= score <= 1 for _, score in result.scores)


def test_a_temperature_of_one_changes_no_bit() -> None:
    logits = np.random.default_rng(0).normal(0, 4, (50, 3)).astype(np.float32)
    for spec in (TOPICS, TAGS):
        assert classification.decode(logits, spec) == classification.decode(
            logits, spec, Scoring(temperature=1)
        )


@given(ROWS, st.floats(0, 1), st.none() | st.integers(1, 4))
def test_a_threshold_leaves_out_labels_and_keeps_the_best(
    rows: list[list[float]], threshold: float, top_k: int | None
) -> None:
    logits = np.array(rows, np.float32).reshape(-1, 3)
    for spec in (TOPICS, TAGS):
        plain = classification.decode(logits, spec)
        for one, other in zip(
            plain, classification.decode(logits, spec, Scoring(top_k, threshold)), strict=True
        ):
            assert (one.label, one.score) == (other.label, other.score)
            assert other.scores == tuple(each for each in one.scores if each[1] >= threshold)[:top_k]


def test_an_activation_of_the_request_replaces_the_models() -> None:
    logits = logits_of([2.0, -1.0, 3.0])
    functions: dict[Activation, Any] = {
        "softmax": special.softmax,
        "sigmoid": special.expit,
        "identity": np.array,
    }
    for name, function in functions.items():
        for spec in (TOPICS, TAGS):
            (result,) = classification.decode(logits, spec, Scoring(activation=name))
            expected = dict(zip(spec.labels, function(logits[0]).tolist(), strict=True))
            assert dict(result.scores) == pytest.approx(expected)


@pytest.mark.parametrize("spec", [TOPICS, TAGS, NUMBER])
def test_windows_give_the_highest_score_or_the_mean_by_tokens(spec: TaskSpec) -> None:
    k = len(spec.labels)
    rows = [np.random.default_rng(n).normal(0, 3, (n, k)).astype(np.float32) for n in (1, 3)]
    tokens = [[7], [30, 30, 10]]
    alone = [classification.decode(each, spec) for each in rows]
    merges: tuple[WindowMerge, ...] = ("max", "mean")
    for merge in merges:
        short, long = classification.decode_windows(rows, tokens, spec, merge)
        assert short == alone[0][0]
        for label in spec.labels:
            scores = [dict(each.scores)[label] for each in alone[1]]
            merged = max(scores) if merge == "max" else np.average(scores, weights=[3, 3, 1])
            assert dict(long.scores)[label] == pytest.approx(merged, abs=1e-6)
        assert [score for _, score in long.scores] == sorted((s for _, s in long.scores), reverse=True)
