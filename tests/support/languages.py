"""Small made-up languages as prepared corpora, for runs of seconds.

`mirror` has sentences whose middle word only both sides together tell; `topics` has documents that speak of one thing each.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.corpus.shards import Document, write_index, write_shard

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_corpus(
    folder: Path, words: int, documents: list[list[NDArray[np.int32]]], held_out: int = 8, shards: int = 2
) -> Path:
    """Write documents, lists of sentences of word numbers from 0, as a prepared corpus; the last ones are held out."""
    folder.mkdir(parents=True)
    pieces = [*SPECIAL, *(f"w{number}" for number in range(words))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    train, rest = documents[: len(documents) - held_out], documents[len(documents) - held_out :]
    size = -(-len(train) // shards)
    parts = [train[i : i + size] for i in range(0, len(train), size)]
    entries = {
        "train": [
            write_shard(folder, f"train-{n:05d}", map(_document, part), 2) for n, part in enumerate(parts)
        ],
        "held_out": [write_shard(folder, "held_out-00000", map(_document, rest), 2)],
    }
    write_index(folder, {"tokenizer": {"vocab_size": len(pieces)}, "token_bytes": 2, "splits": entries})
    json.loads((folder / "corpus.json").read_text())
    return folder


def _document(sentences: list[NDArray[np.int32]]) -> Document:
    tokens = np.concatenate(sentences).astype(np.int32) + len(SPECIAL)
    borders = np.concatenate([[0], np.cumsum([len(s) for s in sentences])]).astype(np.int32)
    return Document(tokens, np.zeros(len(tokens), np.bool_), borders)


def middle_of(left: NDArray[np.int64], right: NDArray[np.int64], names: int) -> NDArray[np.int64]:
    """Return the number of the middle word: a word of its own for each pair of neighbours."""
    return names + names * left + right


def mirror(documents: int, seed: int = 0, names: int = 4) -> list[list[NDArray[np.int32]]]:
    """Sentences "left middle right": `names` left words, as many right ones, and a middle word for each pair of them.

    Left to right, the middle word is a guess among `names`: its right neighbour is not yet known.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(documents):
        left, right = rng.integers(0, names, (2, 8))
        rows = zip(left, middle_of(left, right, names), names + names * names + right, strict=True)
        found.append([np.array(row, np.int32) for row in rows])
    return found


def topics(documents: int, seed: int = 0, count: int = 6, words: int = 8) -> list[list[NDArray[np.int32]]]:
    """Documents of sentences whose words all belong to the document's topic."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, words, 5) + words * topic for _ in range(8)]
        for topic in rng.integers(0, count, documents)
    ]
