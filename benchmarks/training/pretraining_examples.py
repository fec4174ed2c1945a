"""Examples and tokens a second that one core builds and masks for pretraining.

python -m benchmarks.training.pretraining_examples

Synthetic documents of 5 to 80 sentences of 22 tokens, written as shards; the figures hold reading, planning, making and
masking, per second of the process's own CPU time.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np

from training.corpus.shards import Corpus, Document, write_index, write_shard
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import SpecialIds
from training.pretraining.examples.stream import ExampleStream
from training.pretraining.masking import KINDS, strategy
from training.pretraining.masking.phrases import PhraseList
from training.pretraining.masking.word_neighbours import of_pieces

VOCABULARY = 30522
SPECIAL = SpecialIds(101, 102, 0, 103, 100, np.arange(999, VOCABULARY, dtype=np.int32))
BATCH = 256


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=2000, help="documents of each of two shards")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[128, 512], help="lengths of examples")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}, {date.today()}\n")
    print("| examples | masking | length | examples/s | million tokens/s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        corpus = write(Path(folder), arguments.documents)
        for max_tokens in arguments.max_tokens:
            for examples in BUILDERS:
                report(corpus, examples, "tokens", max_tokens)
            for masking in KINDS[1:]:
                report(corpus, "full_sentences", masking, max_tokens)


def report(corpus: Corpus, examples: str, masking: str, max_tokens: int) -> None:
    """Read an epoch and print its line."""
    rng = np.random.default_rng(0)
    mask = strategy(
        masking,
        SPECIAL,
        similar=of_pieces(corpus, rng.normal(size=(VOCABULARY, 8)), SPECIAL)
        if masking == "similar_words"
        else None,
        phrases=PhraseList(rng.choice(SPECIAL.plain, (20_000, 2)).tolist()),
    )
    stream = ExampleStream(corpus, "train", BUILDERS[examples](max_tokens, SPECIAL), mask, 0)
    count = tokens = 0
    start = time.process_time()
    for batch, cursor in stream.batches(BATCH):
        if cursor.epoch:
            break
        count += len(batch)
        tokens += sum(len(example.ids) for example in batch)
    seconds = time.process_time() - start
    print(
        f"| {examples} | {masking} | {max_tokens} | {count / seconds:,.0f} | {tokens / seconds / 1e6:.1f} |"
    )


def write(folder: Path, documents: int) -> Corpus:
    """Write two shards."""
    rng = np.random.default_rng(0)
    entries = [write_shard(folder, f"train-{i:05}", texts(rng, documents), 2) for i in range(2)]
    about = {"token_bytes": 2, "tokenizer": {"vocab_size": VOCABULARY}}
    write_index(folder, {**about, "splits": {"train": entries, "held_out": []}})
    return Corpus.open(folder)


def texts(rng: np.random.Generator, count: int) -> Iterator[Document]:
    """Give random documents, every fifth piece going on with a word."""
    for _ in range(count):
        lengths = np.maximum(1, rng.poisson(22, rng.integers(5, 80)))
        tokens = int(lengths.sum())
        borders = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        yield Document(rng.choice(SPECIAL.plain, tokens), rng.random(tokens) < 0.2, borders)


if __name__ == "__main__":
    main()
