"""Next sentence and sentence order against the paper's procedure, written down once more, slowly and plainly."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pretraining_documents import (
    CLS,
    SEP,
    built,
    document,
    numbered,
    special_ids,
    taken,
    texts,
)
from training.corpus.shards import Document
from training.pretraining.examples.base import Example
from training.pretraining.examples.pairs import NextSentence, SentenceOrder, cut_pair
from training.pretraining.examples.text import Examples

Sentences = list[list[int]]
Pair = tuple[list[int], list[int], bool]

SHAPES = st.lists(
    st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=5, max_size=9
)  # sentences' lengths, document by document


def reference_pairs(documents: list[Sentences], max_tokens: int, short: float, rng: Random) -> list[Pair]:
    """The procedure of the paper's released code, list by list and token by token."""
    pairs: list[Pair] = []
    for own, sentences in enumerate(documents):
        longest = max_tokens - 3
        wanted = longest
        if rng.random() < short:
            wanted = rng.randint(2, longest)
        chunk: Sentences = []
        i = 0
        while i < len(sentences):
            chunk.append(sentences[i])
            at_end = i + 1 == len(sentences)
            if at_end or sum(len(sentence) for sentence in chunk) >= wanted:
                in_a = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
                a = [token for sentence in chunk[:in_a] for token in sentence]
                b = []
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    for _ in range(10):
                        other = rng.randint(0, len(documents) - 1)
                        if other != own:
                            break
                    start = rng.randint(0, len(documents[other]) - 1)
                    for sentence in documents[other][start:]:
                        b.extend(sentence)
                        if len(b) >= wanted - len(a):
                            break
                    i -= len(chunk) - in_a  # put back
                else:
                    b = [token for sentence in chunk[in_a:] for token in sentence]
                while len(a) + len(b) > longest:
                    longer = a if len(a) > len(b) else b
                    if rng.random() < 0.5:
                        longer.pop(0)
                    else:
                        longer.pop()
                pairs.append((a, b, is_random))
                chunk = []
            i += 1
    return pairs


def plain(documents: list[Document]) -> list[Sentences]:
    return [[part.tolist() for part in np.split(d.tokens, d.sentences[1:-1])] for d in documents]


def segments(example: Example) -> tuple[list[int], list[int]]:
    """Check the frame of special tokens and segment ids, and return what is inside."""
    first, last = (np.flatnonzero(example.special)[[1, 2]]).tolist()
    assert example.ids[example.special].tolist() == [CLS, SEP, SEP]
    assert last == len(example.ids) - 1
    assert example.segment_ids.tolist() == [0] * (first + 1) + [1] * (last - first)
    return example.ids[1:first].tolist(), example.ids[first + 1 : last].tolist()


def drawn(
    builder: NextSentence | SentenceOrder, documents: list[Document], rng: Random, cut: int = 1
) -> list[Example]:
    """Make the examples of two shards, the second from document `cut` on."""
    found = []
    with TemporaryDirectory() as folder:
        for text in texts(Path(folder), [documents[:cut], documents[cut:]]):
            found += taken(Examples(text, builder.special, builder.draw(text, rng), segments=True))
    return found


@given(
    shape=SHAPES, max_tokens=st.integers(5, 70), seed=st.integers(0, 2**32), cut=st.integers(0, 9)
)  # fmt: skip
def test_with_the_same_draws_the_pairs_are_the_papers(
    shape: Any, max_tokens: int, seed: int, cut: int
) -> None:
    documents = numbered(shape)
    found = drawn(NextSentence(max_tokens, special_ids(), 0.3), documents, Random(seed), cut)
    expected = reference_pairs(plain(documents), max_tokens, 0.3, Random(seed))
    assert [(*segments(e), e.pair_label == 1) for e in found] == expected


class Scripted(Random):
    """Answers given beforehand."""

    def __init__(self, *answers: float) -> None:
        super().__init__()
        self.answers = list(answers)

    def random(self) -> float:
        return self.answers.pop(0)

    def randint(self, a: int, b: int) -> int:
        answer = int(self.answers.pop(0))
        assert a <= answer <= b
        return answer


def test_a_pair_worked_by_hand() -> None:
    documents = [
        document([10, 11, 12], [13, 14], [15, 16, 17]),
        document([20, 21], [22, 23, 24]),
    ]
    rng = Scripted(
        # The first document is not short: 8 tokens are wanted, so that all three sentences are taken.
        0.9,
        # A is one sentence. B is random, not from document 0 itself but from 1, from its sentence 0 on: 3 + 5 fit.
        1, 0.2, 0, 1, 0,
        # Two sentences were put back. A is one of them, B really next.
        1, 0.7,
        # The second document is short: 4 tokens are wanted, so that both sentences are taken.
        0.05, 4,
        # A is one sentence. B is random, from document 0, from its sentence 1 on: two tokens are enough.
        1, 0.1, 0, 1,
        # The sentence put back is alone, so that B is random without a draw: document 0, sentence 2.
        0, 2,
    )  # fmt: skip
    found = drawn(NextSentence(11, special_ids()), documents, rng)
    assert [(*segments(e), e.pair_label) for e in found] == [
        ([10, 11, 12], [20, 21, 22, 23, 24], 1),
        ([13, 14], [15, 16, 17], 0),
        ([20, 21], [13, 14], 1),
        ([22, 23, 24], [15, 16, 17], 1),
    ]
    assert rng.answers == []


def test_the_longer_segment_is_cut_worked_by_hand() -> None:
    # 7 and 3 tokens in a room of 4: A loses front, back, front, back; as long as B then, and B front, A back.
    rng = Scripted(0.1, 0.9, 0.1, 0.9, 0.1, 0.9)
    assert cut_pair((10, 17), (20, 23), 4, rng) == ((12, 14), (21, 23))
    assert cut_pair((10, 12), (20, 22), 4, rng) == ((10, 12), (20, 22))


def many(count: int = 400, max_tokens: int = 64) -> list[Example]:
    rng = np.random.default_rng(5)
    shape = [rng.integers(3, 12, size=rng.integers(3, 40)).tolist() for _ in range(count)]
    return drawn(NextSentence(max_tokens, special_ids()), numbered(shape), Random(0))


def test_half_of_the_pairs_are_random() -> None:
    labels = np.array([example.pair_label for example in many()])
    # More than half, because a last sentence alone always takes a random B.
    assert len(labels) > 1500 and 0.5 < labels.mean() < 0.6


def test_every_tenth_document_is_short(tmp_path: Path) -> None:
    documents = numbered([[5] * 100] * 2)
    builder, lengths = NextSentence(64, special_ids()), []
    text, _ = texts(tmp_path, [documents, []])
    for seed in range(1000):
        plan = builder.draw(text, Random(seed))
        stop = plan.stops[1]  # the first document's first pair, if B follows A
        if plan.labels[0] == 0:
            lengths.append(stop - plan.starts[0] < 55)
    assert len(lengths) > 400 and 0.05 < np.mean(lengths) < 0.13


def test_a_random_second_segment_is_of_another_document() -> None:
    shape = [[4, 5, 6]] * 3
    documents = plain(numbered(shape))
    owner = {token: i for i, d in enumerate(documents) for sentence in d for token in sentence}
    for seed in range(50):
        for example in drawn(NextSentence(12, special_ids()), numbered(shape), Random(seed)):
            a, b = segments(example)
            assert (owner[a[0]] != owner[b[0]]) == (example.pair_label == 1)


@given(shape=SHAPES, max_tokens=st.integers(5, 70), seed=st.integers(0, 2**32))
def test_sentence_order_takes_neighbours(shape: Any, max_tokens: int, seed: int) -> None:
    found = drawn(SentenceOrder(max_tokens, special_ids()), numbered(shape), Random(seed))
    for example in found:
        a, b = segments(example)
        if example.pair_label == 1:
            a, b = b, a
        for part in (a, b):
            assert part == list(range(part[0], part[0] + len(part)))
        assert a[-1] < b[0]
        if len(example.ids) < max_tokens:  # nothing was cut away
            assert b[0] == a[-1] + 1
        assert len(example.ids) <= max_tokens


def test_sentence_order_loses_no_text_when_nothing_is_cut() -> None:
    documents = numbered([[4, 4, 4, 4, 4], [8], [2, 1]])
    found = built(SentenceOrder(64, special_ids(), 0.0), documents, np.random.default_rng(1))
    tokens = sorted(int(token) for e in found for token in e.ids[~e.special])
    assert tokens == list(range(10, 10 + 20 + 8 + 3))


def test_half_of_the_orders_are_swapped() -> None:
    documents = numbered([[10] * 2000])
    found = built(SentenceOrder(40, special_ids(), 0.0), documents, np.random.default_rng(1))
    labels = [example.pair_label for example in found]
    assert len(labels) >= 500 and 0.44 < np.mean(labels) < 0.56


def test_a_sentence_alone_is_cut_between_words() -> None:
    documents = [document([10, 11, 12, 13], continues=[11, 13]), document([20, 21], continues=[21])]
    found = built(SentenceOrder(32, special_ids()), documents, np.random.default_rng(0))
    # The second is one word: there are no two halves.
    assert [sorted(segments(example)) for example in found] == [[[10, 11], [12, 13]]]
