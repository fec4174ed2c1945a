"""Rare pieces are chosen more often: `masking.smoothing`, as torch.multinomial draws in the published script."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.languages import topics, write_corpus
from tests.support.pretraining_documents import FIRST, UNK, special_ids
from training.corpus.shards import Corpus
from training.pretraining.data import masking
from training.pretraining.examples.base import Example, SpecialIds
from training.pretraining.masking.words import TokenMasking
from training.pretraining.settings import PretrainSettings

DRAWS = 20_000
TEXT = np.array([FIRST, FIRST, FIRST + 1, FIRST + 2, FIRST + 3, UNK, FIRST + 4, FIRST + 4], np.int32)
WEIGHTS = np.zeros(FIRST + 5)
WEIGHTS[FIRST:] = np.array([900, 40, 40, 7, 1]) ** -0.7


def example(tokens: np.ndarray) -> Example:
    special = np.zeros(len(tokens), np.bool_)
    return Example(tokens, np.zeros(len(tokens), np.int8), special, special)


def shares_by_torch(count: int) -> np.ndarray:
    """Return how often each position is among `count` draws of torch.multinomial without replacement, as in distiller.py."""
    weights = torch.from_numpy(WEIGHTS[TEXT])[None].expand(DRAWS, -1)
    drawn = torch.multinomial(weights, count, replacement=False, generator=torch.Generator().manual_seed(0))
    return np.bincount(drawn.flatten().numpy(), minlength=len(TEXT)) / DRAWS


@pytest.mark.parametrize("count", [1, 3])
def test_positions_are_drawn_by_their_weights_without_replacement(count: int) -> None:
    mask = TokenMasking(special_ids(), count / len(TEXT), weights=WEIGHTS)
    keys = np.random.default_rng(1).integers(2**64, size=DRAWS, dtype=np.uint64)
    masked = mask.many([example(TEXT)] * DRAWS, keys)
    assert {len(each.positions) for each in masked} == {count}
    found = np.bincount(np.concatenate([each.positions for each in masked]), minlength=len(TEXT)) / DRAWS
    np.testing.assert_allclose(found, shares_by_torch(count), atol=0.015)


def test_an_unknown_piece_is_never_chosen() -> None:
    mask = TokenMasking(special_ids(), 0.99, weights=WEIGHTS)
    text, unknown = mask.many(
        [example(TEXT), example(np.full(4, UNK, np.int32))], np.array([3, 4], np.uint64)
    )
    assert text.positions.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert not len(unknown.positions)


def test_an_example_is_masked_the_same_alone_and_among_others() -> None:
    mask = TokenMasking(special_ids(), 0.4, weights=WEIGHTS)
    keys = np.arange(3, dtype=np.uint64)
    together = mask.many([example(TEXT)] * 3, keys)
    for number in range(3):
        (alone,) = mask.many([example(TEXT)], keys[number : number + 1])
        assert alone.ids.tolist() == together[number].ids.tolist()


def test_weights_come_from_the_counts_of_the_training_text(
    tmp_path: Path,
) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "corpus", 48, topics(30)))
    tokens = np.concatenate(
        [each.document(i).tokens for each in corpus.shards("train") for i in range(len(each))]
    )
    counts = corpus.token_counts("train")
    assert counts.tolist() == np.bincount(tokens, minlength=corpus.vocab_size).tolist()
    settings = PretrainSettings(
        corpus=corpus.folder, output_dir=tmp_path, max_steps=1, objective="mlm", examples="full_sentences",
        masking={"kind": "tokens", "smoothing": 0.7},
    )  # fmt: skip
    mask = masking(settings, corpus, SpecialIds.load(corpus.folder))
    assert isinstance(mask, TokenMasking) and mask.weights is not None
    assert mask.weights[:5].tolist() == [0.0] * 5
    np.testing.assert_allclose(mask.weights[5:], np.maximum(counts[5:], 1) ** -0.7)


def test_only_single_tokens_are_smoothed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"masking.smoothing is for"):
        PretrainSettings(
            corpus=tmp_path, output_dir=tmp_path, max_steps=1, masking={"kind": "spans", "smoothing": 0.7}
        )
