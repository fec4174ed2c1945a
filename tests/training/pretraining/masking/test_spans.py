"""SpanBERT's spans: their lengths, their shape, and the runs of words behind them against a slow procedure."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import ConfigError
from tests.support.masked_words import SPECIAL, WORDS, example, keys
from tests.support.pretraining_documents import MASK
from training.pretraining.examples.base import Example
from training.pretraining.masking.base import LENGTH, ORDER, MaskingBatch, uniform
from training.pretraining.masking.words import SpanMasking


def reference(masking: SpanMasking, given_example: Example, key: int) -> list[tuple[int, int]]:
    """Spans (first, last) drawn one at a time: anchor, its word, a length, word after word."""

    def draw(place: int, purpose: int) -> float:
        return float(uniform(np.array([key], np.uint64), np.array([place]), purpose)[0])

    masked, beside, spans = set[int](), set[int](), []
    budget = math.ceil(int((~given_example.special).sum()) * masking.rate)

    def word_end(start: int) -> int:
        end = start + 1
        while given_example.continues[end] and not given_example.special[end]:
            end += 1
        return end

    def word_start(place: int) -> int:
        while given_example.continues[place]:
            place -= 1
        return place

    for anchor in sorted(
        np.flatnonzero(~given_example.special).tolist(), key=lambda place: draw(place, ORDER)
    ):
        start = word_start(anchor)
        u, wanted, reached = draw(anchor, LENGTH), 1, masking.length_shares[0]
        while reached < u:
            reached += masking.length_shares[wanted]
            wanted += 1
        end = start
        for _ in range(wanted):
            if (
                given_example.special[end]
                or end in masked | beside
                or len(masked) + word_end(end) - end > budget
            ):
                break
            masked |= set(range(end, word_end(end)))
            end = word_end(end)
        if end > start:
            spans.append((start, end - 1))
            beside |= set(range(word_start(start - 1), start))
            if not given_example.special[end]:
                beside |= set(range(end, word_end(end)))
    return sorted(spans)


@given(segments=WORDS, key=st.integers(0, 2**64 - 1), rate=st.floats(0.05, 0.9))
def test_with_the_same_draws_the_spans_are_the_slow_procedures(segments: Any, key: int, rate: float) -> None:
    masking, given_example = SpanMasking(SPECIAL, rate), example(segments)
    (masked,) = masking.many([given_example], np.array([key], np.uint64))
    expected = reference(masking, given_example, key)
    assert masked.spans is not None
    assert sorted(set(map(tuple, masked.spans.tolist()))) == expected
    assert masked.positions.tolist() == [i for first, last in expected for i in range(first, last + 1)]


@pytest.mark.parametrize(
    ("words", "masked"), [(1, 1), (6, 1), (7, 2), (20, 3), (21, 4), (100, 15), (510, 77)]
)
def test_the_number_is_that_of_the_papers_code(words: int, masked: int) -> None:
    """`math.ceil(sent_length * self.mask_ratio)` over the text without [CLS] and [SEP]."""
    found = SpanMasking(SPECIAL).many([example([[1] * words])] * 20, keys(20))
    assert max(len(one.positions) for one in found) == masked
    few = SpanMasking(SPECIAL, max_predictions=2).many([example([[1] * words])] * 20, keys(20))
    assert max(len(one.positions) for one in few) == min(2, masked)


def test_lengths_are_geometric_and_cut_off_at_10_words() -> None:
    shares = SpanMasking(SPECIAL).length_shares
    assert len(shares) == 10 and shares.sum() == pytest.approx(1)
    assert (shares[1:] / shares[:-1]).tolist() == pytest.approx([0.8] * 9)
    assert (shares * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)  # the paper's figure


def test_the_spans_drawn_have_3_8_words_in_the_mean() -> None:
    # A budget of 10 tokens: the first span of each example is never cut, and the first anchor is in it.
    count, words = 2000, 400
    masking, given_example, drawn = SpanMasking(SPECIAL, 0.025), example([[1] * words]), keys(count)
    masked = masking.many([given_example] * count, drawn)
    places = np.arange((words + 2) * count).reshape(count, -1)
    anchors = MaskingBatch.of([given_example] * count, drawn).shuffled(places[:, 1:-1].ravel())[::words] % (
        words + 2
    )
    lengths = []
    for one, anchor in zip(masked, anchors, strict=True):
        assert one.spans is not None
        ((first, last),) = one.spans[one.positions == anchor].tolist()
        lengths.append(last - first + 1)
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.15)
    assert np.allclose(np.bincount(lengths, minlength=11)[1:] / count, masking.length_shares, atol=0.025)


@given(segments=WORDS, seed=st.integers(0, 2**32))
def test_spans_are_whole_words_of_one_segment(segments: Any, seed: int) -> None:
    given_example = example(segments)
    key = np.random.default_rng(seed).integers(2**64, size=1, dtype=np.uint64)
    (masked,) = SpanMasking(SPECIAL, 0.4).many([given_example], key)
    assert masked.spans is not None and masked.spans.shape == (len(masked.positions), 2)
    for position, (first, last) in zip(masked.positions.tolist(), masked.spans.tolist(), strict=True):
        assert first <= position <= last
        assert not given_example.special[first : last + 1].any()
        assert not given_example.continues[first] and not given_example.continues[last + 1]
        assert (~given_example.continues[first : last + 1]).sum() <= 10
        assert set(range(first, last + 1)) <= set(masked.positions.tolist())
        assert not {first - 1, last + 1} & set(masked.positions.tolist())  # what predicts it is seen


def test_a_span_is_masked_replaced_or_kept_as_one() -> None:
    actions = set[tuple[bool, bool]]()
    for masked in SpanMasking(SPECIAL, mask_share=0.4, random_share=0.3).many(
        [example([[1] * 200])] * 50, keys(50)
    ):
        assert masked.spans is not None
        new = masked.ids[masked.positions]
        for span in np.unique(masked.spans, axis=0):
            inside = (masked.spans == span).all(axis=1)
            is_mask, is_kept = new[inside] == MASK, new[inside] == masked.labels[inside]
            assert is_mask.all() or not is_mask.any()
            assert is_mask.any() or is_kept.all() or is_kept.sum() <= 1  # a random piece may be the old one
            actions.add((bool(is_mask.all()), bool(is_kept.all())))
    assert len(actions) == 3


def test_span_lengths_may_be_given_as_shares() -> None:
    albert = SpanMasking(SPECIAL, rate=0.3, shares=(6 / 11, 3 / 11, 2 / 11))
    assert albert.length_shares.tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    masked = albert.many([example([[1] * 400])], keys(1))[0]
    assert masked.spans is not None
    lengths = {int(last - first + 1) for first, last in masked.spans}
    assert lengths == {1, 2, 3}


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative, and not all 0"):
        SpanMasking(SPECIAL, shares=(0.0,))
