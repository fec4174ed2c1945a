"""ALBERT's n-grams against its procedure, written down once more, slowly and plainly."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import ConfigError
from tests.support.masked_words import SPECIAL, WORDS, example, keys
from tests.support.pretraining_documents import MASK
from training.pretraining.masking.base import LENGTH, ORDER, uniform
from training.pretraining.masking.words import NGramMasking


def flat(words: list[list[int]]) -> list[int]:
    return [place for word in words for place in word]


def reference(masking: NGramMasking, segments: Any, key: int, shares: list[float]) -> list[int]:
    """`create_masked_lm_predictions` of google-research/albert; n-grams stay in their segment."""

    def draw(place: int, purpose: int) -> float:
        return float(uniform(np.array([key], np.uint64), np.array([place]), purpose)[0])

    place, candidates = 1, list[list[list[int]]]()  # each word, and the words after it in its segment
    for segment in segments:
        words = []
        for pieces in segment:
            words.append(list(range(place, place + pieces)))
            place += pieces
        candidates += [words[i : i + len(shares)] for i in range(len(words))]
        place += 1
    budget = max(1, round(place * masking.rate))
    masked = list[int]()
    for words in sorted(candidates, key=lambda words: draw(words[0][0], ORDER)):
        if len(masked) >= budget:
            break
        u, n, reached = draw(words[0][0], LENGTH), 1, shares[0]
        while reached < u:
            reached += shares[n]
            n += 1
        n = min(n, len(words))
        while n and len(masked) + len(flat(words[:n])) > budget:
            n -= 1
        ngram = flat(words[:n])
        if ngram and not set(ngram) & set(masked):
            masked += ngram
    return sorted(masked)


@given(segments=WORDS, key=st.integers(0, 2**64 - 1), rate=st.floats(0.05, 0.9))
def test_with_the_same_draws_the_ngrams_are_alberts(segments: Any, key: int, rate: float) -> None:
    masking, given_example = NGramMasking(SPECIAL, rate), example(segments)
    (masked,) = masking.many([given_example], np.array([key], np.uint64))
    assert masked.positions.tolist() == reference(masking, segments, key, [6 / 11, 3 / 11, 2 / 11])
    assert masked.spans is None


def test_a_number_of_words_has_a_probability_of_one_over_it() -> None:
    # A budget of three: the first n-gram is never shortened.
    masked = NGramMasking(SPECIAL, 3 / 602).many([example([[1] * 600])] * 4000, keys(4000))
    together = np.mean([np.ptp(one.positions) == 2 for one in masked])
    assert together == pytest.approx(2 / 11, abs=0.025)  # three first; later ones seldom lie side by side
    apart = np.mean([(np.diff(one.positions) > 1).all() for one in masked])
    assert apart == pytest.approx((6 / 11) ** 2, abs=0.03)  # one, one, and room for one more


def test_each_piece_has_its_own_draw() -> None:
    masked = NGramMasking(SPECIAL, shares=(0.0, 0.0, 1.0)).many([example([[2] * 100])] * 200, keys(200))
    alike = [(one.ids[one.positions] == MASK).reshape(-1, 2) for one in masked]
    mixed = np.mean(np.concatenate(alike).sum(axis=1) == 1)
    assert mixed == pytest.approx(2 * 0.8 * 0.2, abs=0.03)


def test_lengths_may_be_given_as_shares() -> None:
    (masked,) = NGramMasking(SPECIAL, 0.015, shares=(0.0, 0.0, 0.0, 0.0, 0.0, 1.0)).many(
        [example([[1] * 400])], keys(1)
    )
    assert np.ptp(masked.positions) == 5 and len(masked.positions) == 6
    with pytest.raises(ConfigError, match="must not be negative, and not all 0"):
        NGramMasking(SPECIAL, shares=(-1.0, 2.0))
