"""Input of all runs: prepared text, phrases for ERNIE, and a small BERT to go on from or to learn from."""

import collections
import itertools
import re
from pathlib import Path

from training.corpus.blocks import read_documents
from training.corpus.datasets import list_files
from training.corpus.prepare import prepare
from training.corpus.readers import text_of
from training.corpus.settings import PrepareSettings, VocabularyFamily

PHRASES = 1000
"""Number of word pairs that count as phrases."""


def prepare_corpus(
    sources: list[str], folder: Path, vocab_size: int, max_documents: int, family: VocabularyFamily = "bert"
) -> Path:
    """Prepare the text as `bert-prepare` does, with a vocabulary of the family's kind; finished shards stay."""
    prepare(
        PrepareSettings(
            sources=list(sources), output_dir=folder, vocab_size=vocab_size, held_out=0.04, processes=1,
            max_documents=max_documents, model_type=family,
        )
    )  # fmt: skip
    return folder


def write_phrases(sources: list[str], file: Path, max_documents: int) -> Path:
    """Write the most frequent pairs of words, a phrase a line."""
    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    files = list_files(list(sources))
    for record, _, _ in read_documents(files, limit=max_documents):
        words = re.findall(r"[a-z]+", text_of(files[record.file], record.data).lower())
        pairs.update(itertools.pairwise(words))
    file.write_text("".join(f"{a} {b}\n" for (a, b), _ in pairs.most_common(PHRASES)), encoding="utf-8")
    return file
