"""Made-up data for machines that have none: texts with labels, a corpus of random pieces, and a model's shape."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve.baselines.encoder_shapes import SPECIAL_PIECES, write_tokenizer
from benchmarks.serve.load.texts import SENTENCES, made_up_texts
from bert.tokenizer import Tokenizer
from training.corpus.shards import Document, write_index, write_shard

SENTENCE = (5, 40)
"""Fewest and most tokens of a sentence of the corpus."""
DOCUMENT = (4, 40)
"""Fewest and most sentences of a document of the corpus."""


def write_texts(file: Path, count: int) -> Path:
    """Write sentences labelled by turns, as SST-2 has them."""
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(made_up_texts(count, mixture=SENTENCES))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return file


def write_shape(folder: Path, model: dict[str, Any]) -> Path:
    """Write the config of a BERT and a tokenizer, without weights."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    config = {
        "model_type": "bert",
        "vocab_size": _pieces(folder),
        "pad_token_id": SPECIAL_PIECES.index("[PAD]"),
    }
    (folder / "config.json").write_text(json.dumps(config | model), encoding="utf-8")
    return folder


def write_corpus(folder: Path, documents: int, held_out: int = 8, shards: int = 2) -> Path:
    """Write a corpus as bert-prepare would, the same for the same numbers."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    pieces = _pieces(folder)
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


def _pieces(folder: Path) -> int:
    return Tokenizer.load(folder).highest_id() + 1


def _documents(rng: np.random.Generator, count: int, pieces: int) -> Iterator[Document]:
    for _ in range(count):
        lengths = rng.integers(*SENTENCE, rng.integers(*DOCUMENT))
        borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = rng.integers(len(SPECIAL_PIECES), pieces, borders[-1], dtype=np.int32)
        yield Document(tokens, np.zeros(len(tokens), np.bool_), borders)
