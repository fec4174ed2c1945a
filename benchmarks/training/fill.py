"""Shares of a batch's places that tokens fill, by kind of example and length.

python -m benchmarks.training.fill --corpus corpora/english
"""

import argparse
from pathlib import Path

from training.corpus.shards import Corpus
from training.pretraining.batch import fill_rows
from training.pretraining.examples import BUILDERS
from training.pretraining.examples.base import SpecialIds
from training.pretraining.examples.stream import ExampleStream
from training.pretraining.masking import strategy

BATCH, EXAMPLES = 256, 10_000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder that bert-prepare wrote")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[128, 512, 1024])
    options = parser.parse_args()
    corpus = Corpus.open(options.corpus)
    print("| examples | length | one a row | packed |\n|---|---|---|---|")
    for max_tokens in options.max_tokens:
        for kind in ("full_sentences", "single", "chunks"):
            single, packed = fill(corpus, kind, max_tokens)
            print(f"| {kind} | {max_tokens} | {single:.2%} | {packed:.2%} |", flush=True)


def fill(corpus: Corpus, kind: str, max_tokens: int) -> tuple[float, float]:
    """Return the shares for an example a row, and for packed rows."""
    special = SpecialIds.load(corpus.tokenizer_folder)
    build = BUILDERS[kind](max_tokens, special, 0.0)
    stream = ExampleStream(corpus, "train", build, strategy("tokens", special), 0)
    examples = tokens = rows = 0
    for batch, cursor in stream.batches(BATCH):
        lengths = [len(example.ids) for example in batch]
        examples += len(lengths)
        tokens += sum(lengths)
        rows += len(fill_rows(lengths, max_tokens))
        if cursor.epoch or examples >= EXAMPLES:
            break
    return tokens / (examples * max_tokens), tokens / (rows * max_tokens)


if __name__ == "__main__":
    main()
