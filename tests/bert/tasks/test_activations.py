"""Softmax and sigmoid against scipy."""

import numpy as np
import pytest
from scipy import special

from bert.tasks.task import sigmoid, softmax

LOGITS = np.array([[0.0, 1.0, -1.0], [1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_is_scipys_and_large_logits_do_not_overflow(dtype: type) -> None:
    np.testing.assert_allclose(softmax(LOGITS.astype(dtype)), special.softmax(LOGITS, axis=-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sigmoid_is_scipys_and_large_logits_do_not_overflow(dtype: type) -> None:
    np.testing.assert_allclose(sigmoid(LOGITS.astype(dtype)), special.expit(LOGITS), rtol=1e-6)


@pytest.mark.parametrize("function", [softmax, sigmoid])
def test_the_logits_are_left_as_they_are_and_keep_their_type(function: object) -> None:
    assert callable(function)
    logits = LOGITS.astype(np.float32)
    assert function(logits).dtype == np.float32
    np.testing.assert_array_equal(logits, LOGITS.astype(np.float32))
