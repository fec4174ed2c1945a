"""The label scores against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as reference

from bert.metrics.classification import (
    accuracy,
    confusion_matrix,
    f1_binary,
    f1_macro,
    f1_multi_label,
    matthews,
)

Arrays = tuple[NDArray[Any], NDArray[Any]]


@st.composite
def labelled(draw: st.DrawFn, classes: int = 5) -> Arrays:
    """Draw gold and predicted classes of the same examples, often of few classes only."""
    top = draw(st.integers(0, classes - 1))
    pairs = draw(st.lists(st.tuples(st.integers(0, top), st.integers(0, top)), min_size=1, max_size=40))
    gold, predicted = zip(*pairs, strict=True)
    return np.array(gold), np.array(predicted)


@st.composite
def multi_labelled(draw: st.DrawFn) -> Arrays:
    """Draw gold and predicted label sets, (N, K) of bool each."""
    shape = draw(st.integers(1, 20)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.random(shape) < 0.4, rng.random(shape) < 0.4


@given(labelled())
def test_accuracy_is_sklearns(examples: Arrays) -> None:
    assert accuracy(*examples) == pytest.approx(reference.accuracy_score(*examples))


@given(labelled())
def test_confusion_matrix_is_sklearns_with_gold_in_rows(examples: Arrays) -> None:
    expected = reference.confusion_matrix(*examples, labels=range(5))
    np.testing.assert_array_equal(confusion_matrix(*examples, classes=5), expected)


@given(labelled(), st.integers(0, 4))
def test_f1_of_one_class_is_sklearns(examples: Arrays, positive: int) -> None:
    gold, predicted = (a == positive for a in examples)
    expected = reference.f1_score(gold, predicted, zero_division=0.0)
    assert f1_binary(*examples, positive=positive) == pytest.approx(expected)


@given(labelled())
def test_macro_f1_is_sklearns(examples: Arrays) -> None:
    expected = reference.f1_score(*examples, average="macro", zero_division=0.0)
    assert f1_macro(*examples) == pytest.approx(expected)


@given(multi_labelled(), st.sampled_from(["micro", "macro"]))
def test_f1_over_several_labels_is_sklearns(examples: Arrays, average: str) -> None:
    expected = reference.f1_score(*examples, average=average, zero_division=0.0)
    assert f1_multi_label(*examples, average=average) == pytest.approx(expected)


@given(multi_labelled())
def test_accuracy_over_several_labels_wants_the_whole_row(examples: Arrays) -> None:
    assert accuracy(*examples) == pytest.approx(reference.accuracy_score(*examples))


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(labelled())
def test_matthews_is_sklearns(examples: Arrays) -> None:
    assert matthews(*examples) == pytest.approx(reference.matthews_corrcoef(*examples), abs=1e-12)


def test_matthews_of_a_million_examples_does_not_overflow() -> None:
    gold = np.arange(1_000_000) % 3
    predicted = np.where(np.arange(1_000_000) % 7 == 0, 0, gold)
    assert matthews(gold, predicted) == pytest.approx(reference.matthews_corrcoef(gold, predicted))


def test_a_class_outside_the_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"classes run from 0 to 3; they must lie in 0\.\.2"):
        confusion_matrix([0, 3], [0, 1], classes=3)


def test_a_negative_class_is_refused() -> None:
    with pytest.raises(ValueError, match="classes run from -100"):
        confusion_matrix([0, -100], [0, 1])


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="no examples"):
        accuracy([], [])


def test_arrays_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        accuracy([0, 1], [0, 1, 1])


def test_an_unknown_average_is_refused() -> None:
    with pytest.raises(ValueError, match="'weighted'"):
        f1_multi_label([[1]], [[1]], average="weighted")
