"""Embeddings from co-occurrence: the counts by hand, what they say, and a run that starts from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.languages import topics, write_corpus
from tests.support.pretraining_documents import FIRST, document
from tests.support.pretraining_runs import SMALL, TINY, checkpoints, losses
from training.core.distributed import Processes
from training.corpus.shards import Corpus, write_index, write_shard
from training.pretrain import pretrain
from training.pretraining import cooccurrence
from training.pretraining.cooccurrence import WINDOW, embeddings, near_counts, start_embeddings
from training.pretraining.settings import PretrainSettings

ALONE = Processes(0, 1, torch.device("cpu"))


def corpus_of(folder: Path, *documents: Sequence[int], vocab_size: int = 40) -> Corpus:
    """Each document in a shard of its own."""
    shards = [
        write_shard(folder, f"train-{number}", [document(list(tokens))], 2)
        for number, tokens in enumerate(documents)
    ]
    splits = {"train": shards, "held_out": []}
    write_index(folder, {"token_bytes": 2, "tokenizer": {"vocab_size": vocab_size}, "splits": splits})
    return Corpus.open(folder)


def plain(vocab_size: int = 40) -> np.ndarray:
    return np.arange(FIRST, vocab_size, dtype=np.int32)


def two_topics(folder: Path) -> Corpus:
    """Documents of pieces 10 … 19, and of 20 … 29; 30 and above are in none."""
    chance = np.random.default_rng(0)
    texts = [chance.integers(first, first + 10, 400).tolist() for first in (10, 20) * 5]
    return corpus_of(folder, *texts)


def test_pieces_near_one_another_are_counted_by_hand_and_not_across_documents(tmp_path: Path) -> None:
    seen, counts = near_counts(corpus_of(tmp_path, [10, 11, 10], [12, *[13] * WINDOW, 14], [15]))
    column = {piece: place for place, piece in enumerate(np.argsort(-seen, kind="stable"))}
    assert dict(enumerate(seen[10:16], 10)) == {10: 2, 11: 1, 12: 1, 13: WINDOW, 14: 1, 15: 1}

    def near(piece: int, other: int) -> float:
        return float(counts[piece, column[other]])

    assert near(10, 11) == near(11, 10) == 2.0
    assert near(10, 10) == pytest.approx(2 * (WINDOW - 1) / WINDOW)  # two apart, each near the other
    assert near(12, 13) == near(13, 12) == pytest.approx(sum(range(1, WINDOW + 1)) / WINDOW)
    assert near(12, 14) == near(11, 12) == near(10, 13) == 0.0
    assert not counts[15].any()


def test_only_the_most_frequent_pieces_are_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, [10, 11, 10, 12, 10, 11])
    _, whole = near_counts(corpus)
    monkeypatch.setattr(cooccurrence, "CONTEXTS", 2)
    seen, counts = near_counts(corpus)
    assert counts.shape == (40, 2)
    order = np.argsort(-seen, kind="stable")
    assert order[:2].tolist() == [10, 11] and (counts == whole[:, :2]).all()


def test_so_many_tokens_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "COUNTED_TOKENS", 3)
    seen, counts = near_counts(corpus_of(tmp_path, [10, 11], [12, 13], [14, 15]))
    assert seen[10:14].all() and not seen[14:].any() and not counts[14:].any()


def test_pieces_of_a_topic_lie_together(tmp_path: Path) -> None:
    vectors = embeddings(two_topics(tmp_path), plain(), 8)
    assert torch.allclose(vectors[10:30].norm(dim=1), torch.ones(20))
    assert not vectors[:10].any() and not vectors[30:].any()
    cosines = vectors[10:30] @ vectors[10:30].T
    inside, across = cosines[:10, :10].mean(), cosines[:10, 10:].mean()
    assert inside > 0.3 and across < -0.3
    assert torch.equal(vectors, embeddings(Corpus.open(tmp_path), plain(), 8))


def test_a_vocabulary_smaller_than_the_width_is_filled_up(tmp_path: Path) -> None:
    vectors = embeddings(corpus_of(tmp_path, [10, 11, 12, 10, 12, 11], vocab_size=13), plain(13), 64)
    assert vectors.shape == (13, 64) and vectors.isfinite().all() and vectors[10:].any(dim=1).all()


def test_what_the_corpus_does_not_have_stays_fresh_and_all_are_as_long(tmp_path: Path) -> None:
    torch.manual_seed(1)
    table = nn.Embedding(48, 16)  # filled up to a multiple
    before = table.weight.detach().clone()
    start_embeddings(nn.ModuleDict({"word_embeddings": table}), two_topics(tmp_path), plain(), ALONE)
    after = table.weight.detach()
    assert torch.equal(after[:10], before[:10]) and torch.equal(after[30:], before[30:])
    lengths = after[10:30].norm(dim=1)
    assert torch.allclose(lengths, lengths.mean().expand(20))
    assert lengths.mean() == pytest.approx(before.norm(dim=1).mean().item(), rel=0.1)


def test_a_run_starts_from_them_once_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", 48, topics(40))
    settings: dict[str, Any] = {**SMALL, "corpus": corpus, "schedule": "constant", "save_every_steps": 2}
    counted = {**settings, "model": {**TINY, "embeddings": "cooccurrence"}}
    for name, steps in (("calm", [4]), ("twice", [2, 4])):
        for stop in steps:
            run_settings = {**counted, "output_dir": tmp_path / name, "max_steps": stop}
            assert pretrain(PretrainSettings(**run_settings))
        assert checkpoints(tmp_path / name)
    assert pretrain(PretrainSettings(**{**settings, "output_dir": tmp_path / "random", "max_steps": 4}))
    assert losses(tmp_path / "twice") == losses(tmp_path / "calm") != losses(tmp_path / "random")


@pytest.mark.parametrize("documents", [[], [[10]], [[10], [11], [12]]])
def test_where_nothing_stands_near_anything_all_stays_fresh(
    tmp_path: Path, documents: list[list[int]]
) -> None:
    assert not embeddings(corpus_of(tmp_path, *documents), plain(), 8).any()
