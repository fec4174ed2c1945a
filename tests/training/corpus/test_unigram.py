"""Expected occurrences, losses and pieces of the Unigram trainer against slow obvious versions."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.tokenizers import TRAINING_TEXTS
from training.corpus.unigram import LEAST_COUNT, _digamma, _seeds, _Text, unigram_pieces

WORDS = st.dictionaries(
    st.text("ab,1", min_size=1, max_size=6).map("▁{}".format), st.integers(1, 9), min_size=1
)


def splits(word: str) -> list[list[str]]:
    """Return every way to cut a word."""
    ways = []
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        borders = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(word)]
        ways.append([word[a:b] for a, b in itertools.pairwise(borders)])
    return ways


@given(WORDS)
def test_expected_occurrences_are_those_of_all_splits(words: dict[str, int]) -> None:
    text = _Text.of(words)
    lattice = _seeds(text, 1000)
    names = [text.piece(first, size) for first, size in zip(lattice.firsts, lattice.lengths, strict=True)]
    logs = dict(zip(names, lattice.logs.tolist(), strict=True))
    expected = dict.fromkeys(names, 0.0)
    for word, count in words.items():
        ways = [way for way in splits(word) if all(piece in logs for piece in way)]
        chances = [math.exp(sum(logs[piece] for piece in way)) for way in ways]
        for way, chance in zip(ways, chances, strict=True):
            for piece in way:
                expected[piece] += count * chance / sum(chances)
    np.testing.assert_allclose(
        lattice._expected(text), [expected[name] for name in names], rtol=1e-9, atol=1e-12
    )


@settings(max_examples=30)
@given(WORDS)
def test_a_piece_costs_what_its_best_other_split_loses(words: dict[str, int]) -> None:
    text = _Text.of(words)
    lattice = _seeds(text, 1000).refined(text, 0)
    names = [text.piece(first, size) for first, size in zip(lattice.firsts, lattice.lengths, strict=True)]
    logs = dict(zip(names, lattice.logs.tolist(), strict=True))
    counts, total = dict(zip(names, lattice.counts.tolist(), strict=True)), lattice.counts.sum()
    for name, loss in zip(names, lattice._losses(), strict=True):
        if len(name) == 1:
            continue
        ways = [way for way in splits(name) if len(way) > 1 and all(piece in logs for piece in way)]
        best = max(sum(logs[piece] for piece in way) for way in ways)
        own = counts[name]
        costs = [
            own * (
                math.log(own / total)
                - sum(math.log((counts[piece] + own) / (total + own * (len(way) - 1))) for piece in way)
            )
            for way in ways
            if sum(logs[piece] for piece in way) > best - 1e-9
        ]  # fmt: skip
        assert any(loss == pytest.approx(cost, rel=1e-6, abs=1e-9) for cost in costs)


def test_digamma() -> None:
    x = np.array([LEAST_COUNT, 1.0, 2.5, 7.0, 1e6])
    np.testing.assert_allclose(_digamma(x), torch.digamma(torch.from_numpy(x)).numpy(), rtol=1e-8)


def test_pieces_hold_all_characters_and_never_join_letters_with_other_characters() -> None:
    words = {"▁don't": 9, "▁lower,": 9, "▁1990s": 9, "▁lowest": 9, "▁今天": 9, "▁" + "x" * 60: 3}
    pieces = unigram_pieces(words, 60)
    names = [piece for piece, _ in pieces]
    assert len(set(names)) == len(names) <= 60
    assert {character for word in words for character in word} <= set(names)
    assert not any(any(c.isalpha() for c in name) and any(c in "',1290" for c in name) for name in names)
    logs = [log for _, log in pieces]
    assert logs == sorted(logs, reverse=True)
    assert all("▁" not in name[1:] for name in names)


def test_texts_are_as_likely_as_with_the_library() -> None:
    texts = [text.lower() for text in TRAINING_TEXTS[:4]] * 3
    words: dict[str, int] = {}
    for word in " ".join(texts).split():
        words["▁" + word] = words.get("▁" + word, 0) + 1
    found = unigram_pieces(words, 80)
    theirs = Tokenizer(models.Unigram())
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=81, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    ours = Tokenizer(models.Unigram([("<unk>", 0.0), *found], 0))
    ours.pre_tokenizer = theirs.pre_tokenizer
    lengths = [sum(len(each.encode(text).ids) for text in texts) for each in (ours, theirs)]
    assert len(found) == 80
    assert lengths[0] <= 1.1 * lengths[1]
