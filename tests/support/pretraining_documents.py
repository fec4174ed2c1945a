"""Small documents for the tests of examples and masking."""

from pathlib import Path

import numpy as np

from training.corpus.shards import Corpus, Document, write_index, write_shard
from training.pretraining.examples.base import Example, SpecialIds
from training.pretraining.examples.text import Builder, Examples, OtherDocuments, Text

PAD, UNK, CLS, SEP, MASK, UNUSED = range(6)
FIRST = 10
"""The first plain id; 6 … 9 are unused."""


def special_ids(vocab_size: int = 1000) -> SpecialIds:
    return SpecialIds(CLS, SEP, PAD, MASK, UNK, np.arange(FIRST, vocab_size, dtype=np.int32))


def document(*sentences: list[int], continues: list[int] | None = None) -> Document:
    """Sentences of ids; `continues` lists the ids that go on with a word."""
    tokens = np.array([token for sentence in sentences for token in sentence], np.int32)
    borders = np.cumsum([0, *map(len, sentences)]).astype(np.int32)
    return Document(tokens, np.isin(tokens, continues or []), borders)


def numbered(shape: list[list[int]], first: int = FIRST) -> list[Document]:
    """Documents with sentences of these lengths, each token with a number of its own."""
    documents = []
    for lengths in shape:
        sentences = []
        for length in lengths:
            sentences.append(list(range(first, first + length)))
            first += length
        documents.append(document(*sentences))
    return documents


def taken(examples: Examples) -> list[Example]:
    """Make all examples."""
    return examples.take(np.arange(len(examples)))


def built(builder: Builder, documents: list[Document], rng: np.random.Generator) -> list[Example]:
    """Make all examples of some documents."""
    return taken(builder.plan(Text.of(documents), rng))


def write_corpus(
    folder: Path, train: list[list[Document]], held_out: list[list[Document]] | None = None
) -> Corpus:
    """Write shards of documents."""
    splits = {
        split: [write_shard(folder, f"{split}-{i:05}", shard, 2) for i, shard in enumerate(shards)]
        for split, shards in (("train", train), ("held_out", held_out or []))
    }
    write_index(folder, {"token_bytes": 2, "tokenizer": {"vocab_size": 1000}, "splits": splits})
    return Corpus.open(folder)


def texts(folder: Path, shards: list[list[Document]]) -> list[Text]:
    """Write shards of documents, and return the text of each."""
    others = OtherDocuments(write_corpus(folder, shards), "train")
    return [Text.of(shard, others.first(place), others) for place, shard in enumerate(shards)]
