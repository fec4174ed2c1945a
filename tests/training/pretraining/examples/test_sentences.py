from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pretraining_documents import CLS, FIRST, SEP, built, document, numbered, special_ids
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import Example
from training.pretraining.examples.sentences import Chunks, FullSentences, Segments, SingleSegments
from training.pretraining.examples.text import Examples, Text

SHAPES = st.lists(st.lists(st.integers(1, 40), max_size=10), max_size=6)


def pieces(example: Example) -> list[list[int]]:
    """Return the running texts of an example."""
    borders = np.flatnonzero(example.special)
    assert example.ids[borders].tolist() == [CLS] + [SEP] * (len(borders) - 1)
    assert borders[0] == 0 and borders[-1] == len(example.ids) - 1
    return [part[:-1].tolist() for part in np.split(example.ids[1:], borders[1:-1])]


@given(
    shape=SHAPES,
    max_tokens=st.integers(4, 60),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["full_sentences", "chunks", "single"]),
)
def test_no_token_is_lost_or_doubled(shape: Any, max_tokens: int, seed: int, kind: str) -> None:
    found = built(
        BUILDERS[kind](max_tokens, special_ids(), 0.3), numbered(shape), np.random.default_rng(seed)
    )
    tokens = [int(token) for example in found for token in example.ids[~example.special]]
    assert sorted(tokens) == list(range(FIRST, FIRST + sum(map(sum, shape))))
    for example in found:
        assert len(example.ids) <= max_tokens and not example.segment_ids.any() and example.pair_label == -1


@given(
    shape=SHAPES,
    max_tokens=st.integers(4, 60),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["full_sentences", "chunks"]),
)
def test_each_piece_is_running_text_of_one_document(
    shape: Any, max_tokens: int, seed: int, kind: str
) -> None:
    documents = numbered(shape)
    owner = {int(token): i for i, d in enumerate(documents) for token in d.tokens}
    for example in built(BUILDERS[kind](max_tokens, special_ids()), documents, np.random.default_rng(seed)):
        owners = []
        for piece in pieces(example):
            assert piece == list(range(piece[0], piece[0] + len(piece)))
            owners += sorted({owner[token] for token in piece})
        assert len(owners) == len(set(owners)) == len(pieces(example))


class InOrder(np.random.Generator):
    def permutation(self, x: Any, axis: int = 0) -> Any:
        return np.arange(x)


def test_full_sentences_worked_by_hand() -> None:
    documents = numbered([[3, 2], [4], [9]])  # 10-12, 13-14; 15-18; 19-27
    found = [
        pieces(e) for e in built(FullSentences(8, special_ids()), documents, InOrder(np.random.PCG64(0)))
    ]
    assert found == [
        [[10, 11, 12, 13, 14]],  # [CLS] 5 [SEP] is 7: the next document's 4 and a [SEP] do not fit
        [[15, 16, 17, 18]],  # 6: nor do the 9 of the last one
        [[19, 20, 21, 22, 23, 24]],  # which are over the full length by themselves
        [[25, 26, 27]],
    ]


def test_full_sentences_cross_documents() -> None:
    found = built(FullSentences(16, special_ids()), numbered([[3], [3], [3]]), np.random.default_rng(0))
    assert [len(pieces(example)) for example in found] == [3]
    assert len(found[0].ids) == 1 + 3 * 4


@given(shape=SHAPES, max_tokens=st.integers(4, 60), seed=st.integers(0, 2**32))
def test_chunks_leave_no_place_for_another_token(shape: Any, max_tokens: int, seed: int) -> None:
    documents = numbered(shape)
    lasts = {int(document.tokens[-1]) for document in documents if len(document.tokens)}
    found = built(Chunks(max_tokens, special_ids()), documents, np.random.default_rng(seed))
    for example in found[:-1]:
        short = max_tokens - len(example.ids)
        assert short == 0 or (short == 1 and example.ids[-2] in lasts)


def test_chunks_worked_by_hand() -> None:
    documents = numbered([[3, 2], [4], [9]])  # 10-12, 13-14; 15-18; 19-27
    found = [pieces(e) for e in built(Chunks(8, special_ids()), documents, InOrder(np.random.PCG64(0)))]
    assert found == [
        [[10, 11, 12, 13, 14]],  # [CLS] 5 [SEP] is 7: a token and a [SEP] do not fit
        [[15, 16, 17, 18], [19]],
        [[20, 21, 22, 23, 24, 25]],
        [[26, 27]],
    ]


@pytest.mark.parametrize("kind", ["full_sentences", "chunks"])
def test_documents_come_in_another_order_each_time(kind: str) -> None:
    documents, build = numbered([[3]] * 8), BUILDERS[kind](64, special_ids())
    orders = {
        tuple(built(build, documents, np.random.default_rng(seed))[0].ids.tolist()) for seed in range(10)
    }
    assert len(orders) == 10


def test_single_segments_stay_in_their_document() -> None:
    found = built(
        SingleSegments(16, special_ids(), 0.0), numbered([[3, 3], [3], [9, 9]]), np.random.default_rng(0)
    )
    assert [pieces(example) for example in found] == [
        [[10, 11, 12, 13, 14, 15]],
        [[16, 17, 18]],
        [list(range(19, 28))],
        [list(range(28, 37))],
    ]


def test_every_tenth_documents_single_segments_are_short() -> None:
    documents = numbered([[1] * 62] * 1000)
    found = built(SingleSegments(64, special_ids()), documents, np.random.default_rng(0))
    whole = sum(len(example.ids) == 64 for example in found)
    assert 870 < whole < 930
    assert min(len(example.ids) for example in found) < 10


@pytest.mark.parametrize("kind", ["full_sentences", "chunks", "single", "sentence_order"])
def test_nothing_gives_no_example(kind: str) -> None:
    make = BUILDERS[kind](32, special_ids())
    if kind == "sentence_order":
        assert len(built(make, [document([10])], np.random.default_rng(0))) == 0
    else:
        assert len(built(make, [document([10])], np.random.default_rng(0))) == 1


def slowly(shape: list[list[int]], max_tokens: int, short: float, rng: Random) -> list[list[list[int]]]:
    """Return ELECTRA's segments token by token, as its code's comments describe them."""
    found, target, token = list[list[list[int]]](), max_tokens, FIRST
    for lengths in shape:
        lines = []
        for length in lengths:
            lines.append(list(range(token, token + length)))
            token += length
        while lines:
            taken: list[list[int]] = []
            while lines and sum(map(len, taken)) < target:
                taken.append(lines.pop(0))
            goal = 100_000 if rng.random() < 0.1 else (target - 3) // 2
            a, b = list[int](), list[int]()
            for line in taken:
                fits = not a or len(a) + len(line) < goal
                if not b and (fits or (len(a) < goal and rng.random() < 0.5)):
                    a += line
                else:
                    b += line
            a = a[: max_tokens - 2]
            b = b[: max(0, max_tokens - len(a) - 3)]
            found.append([a, b] if b else [a])
            target = rng.randint(5, max_tokens) if rng.random() < short else max_tokens
    return found


@given(shape=SHAPES, max_tokens=st.integers(5, 60), seed=st.integers(0, 2**32))
def test_segments_are_those_of_a_slow_version(shape: Any, max_tokens: int, seed: int) -> None:
    given = [[length for length in each if length] for each in shape]
    builder = Segments(max_tokens, special_ids(), 0.3)
    text = Text.of(numbered(given))
    plan = builder.draw(text, Random(seed))
    found = Examples(text, special_ids(), plan, segments=True).take(np.arange(len(plan.labels)))
    assert [pieces(example) for example in found] == slowly(given, max_tokens, 0.3, Random(seed))
    for example in found:
        borders = np.flatnonzero(example.special)
        assert len(example.ids) <= max_tokens and example.pair_label == -1
        assert example.segment_ids.tolist() == [int(i > borders[1]) for i in range(len(example.ids))]


def test_one_segment_alone_has_one_separator() -> None:
    special = special_ids()._replace(separators=2)
    found = built(Segments(20, special), numbered([[3, 4], [4]]), np.random.default_rng(3))
    for example in found:
        assert int(example.special.sum()) == (2 if len(pieces(example)) == 1 else 4)
