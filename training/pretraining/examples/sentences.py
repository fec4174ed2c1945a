"""Running text without a label: full sentences or full rows over the borders of documents, or sentences inside one."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import ClassVar

import numpy as np

from training.pretraining.examples.text import Builder, ExampleRanges, Text


@dataclass(frozen=True)
class FullSentences(Builder):
    """Sentences one after another up to the full length, over document borders with a [SEP] between.

    FULL-SENTENCES of Liu et al. 2019 (arXiv 1907.11692, 4.2). Each epoch has a new order of documents. Nothing is
    lost: a sentence that does not fit starts the next example, and one over the full length is cut.
    """

    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        packer = _Packer(self.max_tokens)
        for document in rng.permutation(text.document_count).tolist():
            packer.add(_sentences(text, document))
        packer.close()
        return packer.plan


@dataclass(frozen=True)
class SingleSegments(Builder):
    """Sentences of one document up to the full length, or in `short_share` of documents up to a random shorter one.

    The paper's ablations without next sentence prediction and left-to-right use it.
    """

    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        draws, packer = Random(int(rng.integers(2**63))), _Packer(self.max_tokens)
        for document in range(text.document_count):
            short = draws.random() < self.short_share
            packer.max_tokens = draws.randint(4, self.max_tokens) if short else self.max_tokens
            packer.add(_sentences(text, document))
            packer.close()
        return packer.plan


@dataclass(frozen=True)
class Chunks(Builder):
    """Running text cut every `max_tokens`, over the borders of sentences and documents, with a [SEP] between documents.

    No place is left for padding but in a shard's last example, and where a document ends one place before the end:
    a token and its [SEP] take two. Each epoch has a new order of documents, so the cuts fall elsewhere.
    """

    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        plan, pieces, free = ExampleRanges(), list[tuple[int, int]](), self.max_tokens - 1  # all but [CLS]
        for document in rng.permutation(text.document_count).tolist():
            start, end = (text.sentences[text.documents[number]] for number in (document, document + 1))
            while start < end:
                stop = min(end, start + free - 1)
                pieces.append((start, stop))
                free -= stop - start + 1
                start = stop
                if free < 2:
                    plan.add(pieces)
                    pieces, free = [], self.max_tokens - 1
        if pieces:
            plan.add(pieces)
        return plan


@dataclass(frozen=True)
class Segments(Builder):
    """Sentences of one document up to the full length, as two segments, without a label.

    ELECTRA's examples (google-research/electra `build_pretraining_dataset.py`, whose draws are made in the same order). A
    tenth has one segment, and `short_share` of them end at a random shorter length. What passes the full length is lost.
    """

    pairs: ClassVar[bool] = True

    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        return self.draw(text, Random(int(rng.integers(2**63))))

    def draw(self, text: Text, rng: Random) -> ExampleRanges:
        """Plan with the given draws."""
        plan, target = ExampleRanges(), self.max_tokens
        for document in range(text.document_count):
            chunk: list[tuple[int, int]] = []
            for sentence in _sentences(text, document):
                chunk.append(sentence)
                if chunk[-1][1] - chunk[0][0] >= target:
                    target = self._add(plan, chunk, target, rng)
                    chunk = []
            if chunk:
                target = self._add(plan, chunk, target, rng)
        return plan

    def _add(self, plan: ExampleRanges, chunk: list[tuple[int, int]], target: int, rng: Random) -> int:
        """Add the example of these sentences; return the length that the next one is made for."""
        (start, split), stop = chunk[0], chunk[-1][1]
        goal = (target - 3) // 2 if rng.random() >= 0.1 else sys.maxsize
        for _, last in chunk[1:]:
            # The sentence that passes the goal goes to either segment.
            if last - start >= goal and (split - start >= goal or rng.random() >= 0.5):
                break
            split = last
        pieces = [(start, min(split, start + self.max_tokens - 2))]
        room = self.max_tokens - 2 - self.special.separators - (split - start)
        if split < stop and room > 0:
            pieces.append((split, min(stop, split + room)))
        plan.add(pieces)
        return rng.randint(5, self.max_tokens) if rng.random() < self.short_share else self.max_tokens


@dataclass(slots=True)
class _Packer:
    """Packer that fills one example after another; each piece is running text of one document, followed by [SEP]."""

    max_tokens: int
    plan: ExampleRanges = field(default_factory=ExampleRanges)
    pieces: list[tuple[int, int]] = field(default_factory=list)
    used: int = 1
    """Tokens of the open example, [CLS] included."""

    def add(self, sentences: Iterable[tuple[int, int]]) -> None:
        """Add one document's sentences."""
        start = stop = -1  # the open piece
        for first, last in sentences:
            if start >= 0 and self.used + 1 + last - start > self.max_tokens:
                self._keep(start, stop)
                self.close()
                start = -1
            if start < 0:
                start = first
                if self.used + 1 + last - first > self.max_tokens:
                    self.close()
            while self.used + 1 + last - start > self.max_tokens:  # over the full length by itself
                cut = start + self.max_tokens - 2
                self.plan.add([(start, cut)])
                start = cut
            stop = last
        if start >= 0:
            self._keep(start, stop)

    def _keep(self, start: int, stop: int) -> None:
        self.pieces.append((start, stop))
        self.used += stop - start + 1

    def close(self) -> None:
        """End the open example, if it holds anything."""
        if self.pieces:
            self.plan.add(self.pieces)
        self.pieces, self.used = [], 1


def _sentences(text: Text, document: int) -> Iterator[tuple[int, int]]:
    borders = text.sentences[text.documents[document] : text.documents[document + 1] + 1]
    return pairwise(borders)
