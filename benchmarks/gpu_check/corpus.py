"""A made-up corpus as bert-prepare would write it, without texts: documents of random pieces."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.serve.baselines.encoder_shapes import SPECIAL_PIECES, write_tokenizer
from bert.tokenizer import Tokenizer
from training.corpus.shards import Document, write_index, write_shard

SENTENCE = (5, 40)
"""Fewest and most tokens of a sentence."""
SENTENCES = (4, 40)
"""Fewest and most sentences of a document."""


def write_corpus(folder: Path, documents: int, held_out: int = 8, shards: int = 2) -> Path:
    """Write a corpus, the same for the same numbers; return its folder."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    pieces = Tokenizer.load(folder).highest_id() + 1
    rng = np.random.default_rng(0)
    each = -(-documents // shards)
    splits = {
        "train": [
            write_shard(folder, f"train-{n:05d}", _documents(rng, each, pieces), 2) for n in range(shards)
        ],
        "held_out": [write_shard(folder, "held_out-00000", _documents(rng, held_out, pieces), 2)],
    }
    write_index(folder, {"tokenizer": {"vocab_size": pieces}, "token_bytes": 2, "splits": splits})
    return folder


def _documents(rng: np.random.Generator, count: int, pieces: int) -> Iterator[Document]:
    for _ in range(count):
        lengths = rng.integers(*SENTENCE, rng.integers(*SENTENCES))
        borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = rng.integers(len(SPECIAL_PIECES), pieces, borders[-1], dtype=np.int32)
        yield Document(tokens, np.zeros(len(tokens), np.bool_), borders)
