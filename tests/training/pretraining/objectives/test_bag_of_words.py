"""Every word of a text from its [CLS]: the loss by hand, the weights of the pieces, and what is counted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bert_reference import assert_same
from tests.support.objectives import FIRST_WORD, MAX_TOKENS, batch, config, filled
from tests.support.pretraining_documents import numbered
from training.corpus.shards import Corpus, write_index, write_shard
from training.pretraining.objectives import bag_of_words
from training.pretraining.objectives.bag_of_words import (
    FREQUENT,
    MaskedLanguageModelWithBagOfWords,
    piece_counts,
    piece_weights,
)

LENGTHS = st.lists(st.integers(3, MAX_TOKENS), min_size=1, max_size=9)


def made(seed: int) -> MaskedLanguageModelWithBagOfWords:
    """Return an objective whose pieces have random weights, special ones none."""
    shape = config(seed)
    weights = np.random.default_rng(seed).random(shape.vocab_size).astype(np.float32)
    weights[:FIRST_WORD] = 0.0
    objective = filled(MaskedLanguageModelWithBagOfWords(shape, weights), seed)
    assert isinstance(objective, MaskedLanguageModelWithBagOfWords)
    return objective


@settings(max_examples=10)
@given(seed=st.integers(0, 9999), lengths=LENGTHS, packed=st.booleans())
def test_the_loss_is_that_of_each_text_by_itself(seed: int, lengths: list[int], packed: bool) -> None:
    objective = made(seed)
    model, weights = objective.model, objective.piece_weights
    whole = batch(seed, model.config.vocab_size, lengths, packed=packed)
    by_hand = []
    for length, first in zip(lengths, whole.firsts.tolist(), strict=True):
        row, start = divmod(first, whole.input_ids.shape[1])
        text = slice(start, start + length)
        hidden = model.bert(whole.input_ids[row : row + 1, text], whole.segment_ids[row : row + 1, text])
        said = model.score(hidden[:, 0])[0].log_softmax(-1)
        words = sorted(set(whole.original_ids[row, text].tolist()))
        share = weights[words] / weights[words].sum()
        by_hand.append(-(share * said[words]).sum())
    found = objective(whole)
    assert found["bow"].targets == objective.targets(whole)["bow"] == len(lengths)
    assert_same(found["bow"].total.detach(), torch.stack(by_hand).sum().detach())


def test_the_masked_words_are_hidden_from_the_model_and_asked_of_it() -> None:
    objective = made(3)
    whole = batch(3, objective.model.config.vocab_size, [9])
    wanted = objective.wanted(whole)[0]
    assert (wanted[whole.labels] > 0).all()
    assert wanted.sum() == pytest.approx(1.0) and (wanted[:FIRST_WORD] == 0).all()


def test_a_text_without_a_word_that_counts_has_no_loss() -> None:
    shape = config(0)
    objective = MaskedLanguageModelWithBagOfWords(shape, np.zeros(shape.vocab_size, np.float32))
    losses = objective(batch(0, shape.vocab_size, [5, 9]))
    assert losses["bow"].total == 0.0 and torch.isfinite(losses["mlm"].total)


def test_frequent_pieces_count_less_and_special_ones_nothing() -> None:
    counts = np.array([10**6, 10, 40, 0, 99_950, 10**5])
    weights = piece_weights(counts, np.array([1, 2, 3, 4]))
    assert weights[0] == weights[3] == weights[5] == 0.0  # not of the text, or never seen
    assert weights[1] == 1.0
    assert weights[2] == pytest.approx(np.sqrt(FREQUENT / (40 / 10**5)))
    assert weights[4] == pytest.approx(np.sqrt(FREQUENT / 0.9995))


def test_pieces_are_counted_in_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = [numbered([[9, 7], [8]], 5), numbered([[30, 4], [6]], 20)]
    splits = {
        "train": [write_shard(tmp_path, f"train-{i}", shard, 2) for i, shard in enumerate(train)],
        "held_out": [write_shard(tmp_path, "held_out-0", numbered([[50]], 100), 2)],
    }
    write_index(tmp_path, {"token_bytes": 2, "tokenizer": {"vocab_size": 1000}, "splits": splits})
    opened = Corpus.open(tmp_path)
    tokens = np.concatenate([document.tokens for shard in train for document in shard])
    assert (piece_counts(opened) == np.bincount(tokens, minlength=opened.vocab_size)).all()
    monkeypatch.setattr(bag_of_words, "COUNTED_TOKENS", 50)
    assert (piece_counts(opened) == np.bincount(tokens[:50], minlength=opened.vocab_size)).all()
