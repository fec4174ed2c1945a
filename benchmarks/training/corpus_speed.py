"""Tokens a second of CPU time: bert-prepare's way to ids beside the tokenizer's own, on one core, same ids.

python -m benchmarks.training.corpus_speed books-000.jsonl.xz vocab.txt
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path

import numpy as np
import tokenizers

from bert.tokenizer import Tokenizer
from training.corpus.datasets import list_files
from training.corpus.encoder import BATCH_CHARACTERS, SentenceEncoder
from training.corpus.readers import DocumentReader, text_of
from training.corpus.sentences import split_sentences
from training.corpus.shards import Document

Batches = list[list[str]]


def seconds(body: Callable[[], object]) -> float:
    """Return the CPU time of a call: other processes on the machine do not count."""
    began = time.process_time()
    body()
    return time.process_time() - began


def in_batches(sentences: list[str]) -> Batches:
    """Group sentences as a worker of bert-prepare does."""
    batches: Batches = [[]]
    size = 0
    for sentence in sentences:
        if size >= BATCH_CHARACTERS:
            batches.append([])
            size = 0
        batches[-1].append(sentence)
        size += len(sentence)
    return batches


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--language", default="en")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    (file,) = list_files([arguments.source])
    texts = [
        text_of(file, record.data) for record in islice(DocumentReader(file).records(), arguments.documents)
    ]
    sentences: list[str] = []

    def split() -> None:
        for text in texts:
            sentences.extend(split_sentences(text, arguments.language))

    splitting = seconds(split)
    batches, tokenizer = in_batches(sentences), Tokenizer.load(arguments.tokenizer)
    chinese = arguments.language == "zh"
    encoder = SentenceEncoder(tokenizer, chinese=chinese, segment_words=chinese)
    found: list[Document] = []
    timed = {
        "bert.tokenizer, with offsets": seconds(lambda: [tokenizer.pieces(batch) for batch in batches]),
        "tokenizers, encode_batch_fast": seconds(lambda: [tokenizer.ids(batch) for batch in batches]),
        "bert-prepare": seconds(lambda: found.extend(encoder.encode(batch) for batch in batches)),
    }
    for batch, made in zip(batches, found, strict=True):
        same = [part.tolist() for part in np.split(made.tokens, made.sentences[1:-1])] == tokenizer.ids(batch)
        assert same, "the ids differ"
    tokens = sum(len(made.tokens) for made in found)
    print(
        f"{date.today()}, {platform.processor() or platform.machine()}, tokenizers {tokenizers.__version__}"
    )
    print(f"$ python -m benchmarks.training.corpus_speed {' '.join(sys.argv[1:])}\n")
    print(
        f"{len(texts):,} documents, {len(sentences):,} sentences (found in {splitting:.2f} s), {tokens:,} tokens\n"
    )
    print("| ids by | tokens a CPU second | ratio |\n|---|---|---|")
    for name, taken in timed.items():
        ratio = timed["tokenizers, encode_batch_fast"] / taken
        print(f"| {name} | {tokens / taken:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
