"""Tokens and whole words against the reference procedure, word by word, with the same draws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pretraining_documents import CLS, FIRST, MASK, PAD, SEP, UNK, special_ids
from training.pretraining.examples.base import Example, MaskedExample
from training.pretraining.masking import KINDS
from training.pretraining.masking.base import ACTION, ORDER, PIECE, Masking, uniform
from training.pretraining.masking.phrases import PhraseList
from training.pretraining.masking.similar_words import WordTable, neighbours
from training.pretraining.masking.words import TokenMasking, WholeWordMasking

SPECIAL = special_ids()
TEXTS = st.lists(
    st.lists(st.tuples(st.integers(FIRST, 999), st.booleans()), min_size=1, max_size=40),
    min_size=1,
    max_size=3,
)  # one or more segments of (id, goes on with a word)


def example(segments: Any, pair_label: int = -1) -> Example:
    ids, continues, special, segment_ids = [CLS], [False], [True], [0]
    for place, segment in enumerate(segments):
        ids += [*(token for token, _ in segment), SEP]
        continues += [*(goes_on for _, goes_on in segment), False]
        special += [False] * len(segment) + [True]
        segment_ids += [place] * (len(segment) + 1)
    return Example(
        np.array(ids, np.int32),
        np.array(segment_ids, np.int8),
        np.array(continues),
        np.array(special),
        pair_label,
    )


def many(count: int, tokens: int, seed: int = 0) -> list[Example]:
    rng = np.random.default_rng(seed)
    draw = [
        (rng.choice(SPECIAL.plain, tokens).tolist(), (rng.random(tokens) < 0.3).tolist())
        for _ in range(count)
    ]
    return [example([list(zip(ids, goes_on, strict=True))]) for ids, goes_on in draw]


def keys(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)


def reference(masking: Masking, whole_words: bool, given_example: Example, key: int) -> tuple[Any, Any, Any]:
    """create_masked_lm_predictions, with the draws that belong to this key."""

    def draw(place: int, purpose: int) -> float:
        return float(uniform(np.array([key], np.uint64), np.array([place]), purpose)[0])

    ids = given_example.ids.tolist()
    candidates: list[list[int]] = []
    for i in range(len(ids)):
        if ids[i] in (CLS, SEP):
            continue
        if whole_words and given_example.continues[i] and i - 1 in (candidates[-1] if candidates else []):
            candidates[-1].append(i)
        else:
            candidates.append([i])
    candidates.sort(key=lambda places: draw(places[0], ORDER))
    to_predict = max(1, round(len(ids) * masking.rate))
    if masking.max_predictions:
        to_predict = min(masking.max_predictions, to_predict)
    output, predicted = list(ids), list[tuple[int, int]]()
    for places in candidates:
        if len(predicted) >= to_predict:
            break
        if len(predicted) + len(places) > to_predict:
            continue
        for i in places:
            if draw(i, ACTION) < 0.8:
                output[i] = MASK
            elif draw(i, ACTION) < 0.9:
                output[i] = int(SPECIAL.plain[int(draw(i, PIECE) * len(SPECIAL.plain))])
            predicted.append((i, ids[i]))
    predicted.sort()
    return output, [i for i, _ in predicted], [token for _, token in predicted]


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=5), seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 0.9), most=st.integers(0, 12), whole_words=st.booleans(),
)  # fmt: skip
def test_with_the_same_draws_the_masks_are_the_references(
    texts: Any, seed: int, rate: float, most: int, whole_words: bool
) -> None:
    masking = (WholeWordMasking if whole_words else TokenMasking)(SPECIAL, rate, most)
    examples, drawn = [example(segments, 1) for segments in texts], keys(len(texts), seed)
    for before, after, key in zip(examples, masking.many(examples, drawn), drawn.tolist(), strict=True):
        output, positions, labels = reference(masking, whole_words, before, key)
        assert after.ids.tolist() == output
        assert (after.positions.tolist(), after.labels.tolist()) == (positions, labels)
        assert after.original is before.ids and after.special is before.special
        assert after.segment_ids is before.segment_ids and after.pair_label == 1 and after.spans is None


def some_words(rng: np.random.Generator, pieces: int) -> WordTable:
    words = rng.choice(SPECIAL.plain, (900, pieces))
    return neighbours(words, rng.normal(size=(900, 4)))


def every_masking(rate: float = 0.15, **more: Any) -> list[Masking]:
    rng = np.random.default_rng(0)
    extra: dict[str, Any] = {
        "similar_words": {"similar": {n: some_words(rng, n) for n in (1, 2)}},
        "phrases": {"phrases": PhraseList([[int(a), int(a) + 1] for a in range(FIRST, 999)])},
    }
    return [made(SPECIAL, rate, **more, **extra.get(kind, {})) for kind, made in KINDS.items()]


def id_of(masking: Masking) -> str:
    return type(masking).__name__


@pytest.mark.parametrize("masking", every_masking(0.4), ids=id_of)
def test_an_example_is_masked_the_same_alone_and_among_others(masking: Masking) -> None:
    examples, drawn = many(6, 30), keys(6)
    together = masking.many(examples, drawn)
    for i in range(6):
        (alone,) = masking.many(examples[i : i + 1], drawn[i : i + 1])
        for name in ("ids", "positions", "labels"):
            assert getattr(alone, name).tolist() == getattr(together[i], name).tolist()
    assert masking.many([], keys(0)) == []


@pytest.mark.parametrize("masking", every_masking(0.9), ids=id_of)
def test_special_tokens_are_never_chosen_and_never_drawn(masking: Masking) -> None:
    examples = [example([[(5 + FIRST, False)] * 3, [(7 + FIRST, True)] * 20]) for _ in range(200)]
    for masked in masking.many(examples, keys(200)):
        assert not masked.special[masked.positions].any()
        changed = masked.ids[masked.positions]
        assert np.isin(changed[changed != MASK], SPECIAL.plain).all()
        assert len(np.unique(masked.positions)) == len(masked.positions)


@pytest.mark.parametrize("masking", every_masking(), ids=id_of)
def test_what_is_not_chosen_stays_and_labels_are_the_original(masking: Masking) -> None:
    for before, masked in zip(many(50, 60), masking.many(many(50, 60), keys(50)), strict=True):
        assert masked.labels.tolist() == before.ids[masked.positions].tolist()
        restored = masked.ids.copy()
        restored[masked.positions] = masked.labels
        assert restored.tolist() == before.ids.tolist() == masked.original.tolist()
        assert {masked.ids.dtype, masked.positions.dtype, masked.labels.dtype} == {np.dtype(np.int32)}


@pytest.mark.parametrize("masking", every_masking(), ids=id_of)
def test_fifteen_percent_are_chosen_and_never_more(masking: Masking) -> None:
    counts = np.array([len(masked.positions) for masked in masking.many(many(300, 98), keys(300))])
    assert counts.max() == 15  # of 100 tokens, [CLS] and [SEP] among them; spans: 14.7 of 98, rounded up
    assert counts.mean() > 14.5


@pytest.mark.parametrize("masking", every_masking(max_predictions=4), ids=id_of)
def test_max_predictions_is_kept(masking: Masking) -> None:
    counts = [len(masked.positions) for masked in masking.many(many(300, 98), keys(300))]
    assert max(counts) == 4 and np.mean(counts) > 3.5


def shares(masked: list[MaskedExample]) -> tuple[float, float, float]:
    """Return how many positions hold [MASK], another piece, their own."""
    new = np.concatenate([m.ids[m.positions] for m in masked])
    old = np.concatenate([m.labels for m in masked])
    return (
        float((new == MASK).mean()),
        float(((new != MASK) & (new != old)).mean()),
        float((new == old).mean()),
    )


@pytest.mark.parametrize(
    "masking", [m for m in every_masking() if id_of(m) != "SimilarWordMasking"], ids=id_of
)
def test_of_the_chosen_80_percent_are_masked_10_random_10_kept(masking: Masking) -> None:
    found = shares(masking.many(many(1500, 98), keys(1500)))
    assert np.allclose(found, (0.8, 0.1, 0.1), atol=0.015)


def test_other_shares() -> None:
    masking = TokenMasking(SPECIAL, mask_share=0.0, random_share=1.0)
    assert shares(masking.many(many(500, 98), keys(500)))[1] > 0.99
    assert (
        shares(TokenMasking(SPECIAL, mask_share=1.0, random_share=0.0).many(many(9, 98), keys(9)))[0] == 1.0
    )


def test_every_plain_piece_is_drawn_about_equally_often_and_no_other() -> None:
    special = special_ids(60)
    masking = TokenMasking(special, 0.9, mask_share=0.0, random_share=1.0)
    examples = [example([[(FIRST, False)] * 98])] * 2000
    drawn = np.concatenate([m.ids[m.positions] for m in masking.many(examples, keys(2000))])
    counts = np.bincount(drawn, minlength=60)
    assert counts[:FIRST].sum() == 0 and len(counts) == 60
    expected = len(drawn) / 50
    assert (
        (counts[FIRST:] - expected) ** 2 / expected
    ).sum() < 86  # chi-square, 49 degrees of freedom, 99.9%


def test_every_position_is_chosen_equally_often() -> None:
    masked = TokenMasking(SPECIAL).many(many(1, 98) * 20000, keys(20000))
    counts = np.bincount(np.concatenate([m.positions for m in masked]), minlength=100)[1:99]
    expected = 20000 * 15 / 98
    # Without replacement the counts vary less than a chi-square with 97 degrees of freedom: its 99.9%.
    assert ((counts - expected) ** 2 / expected).sum() < 147


def test_unknown_pieces_can_be_chosen() -> None:
    # As in the reference: only [CLS] and [SEP] are left out.
    masked = TokenMasking(SPECIAL, 0.5).many([example([[(UNK, False)] * 8])], keys(1))
    assert masked[0].labels.tolist() == [UNK] * 5


def test_words_are_masked_whole() -> None:
    for before, masked in zip(
        many(200, 98), WholeWordMasking(SPECIAL).many(many(200, 98), keys(200)), strict=True
    ):
        chosen = np.isin(np.arange(100), masked.positions)
        inside = np.flatnonzero(before.continues[2:99]) + 2  # the first of the text starts a word anyway
        assert (chosen[inside] == chosen[inside - 1]).all()


def test_a_word_over_the_budget_is_passed_over() -> None:
    long_word = [(20, False), *[(21 + i, True) for i in range(8)]]
    masked = WholeWordMasking(SPECIAL, 0.15).many([example([[*long_word, (40, False)]])] * 20, keys(20))
    assert {tuple(m.labels.tolist()) for m in masked} == {(40,)}  # 2 of 12 are wanted: nothing else fits
    only = WholeWordMasking(SPECIAL, 0.15).many([example([long_word])], keys(1))
    assert len(only[0].positions) == 0


def test_padding_is_not_a_piece() -> None:
    assert PAD not in SPECIAL.plain
