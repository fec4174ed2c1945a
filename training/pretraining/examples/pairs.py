"""Two segments and a label: next sentence (BERT), sentence order (ALBERT).

Devlin et al. 2018 (arXiv 1810.04805, A.1) and google-research/bert `create_pretraining_data.py`. The draws are made
in the same order, so one seed gives the examples of the reference.
"""

from abc import abstractmethod
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from training.pretraining.examples.text import Builder, ExampleRanges, Text

Piece = tuple[int, int]
"""First token of a piece, and the token after its last."""
IN_ORDER, RANDOM, SWAPPED = 0, 1, 1


@dataclass(frozen=True)
class _Pairs(Builder):
    """Chunks of sentences up to a target length, each cut in two at a random sentence."""

    pairs: ClassVar[bool] = True

    @property
    def room(self) -> int:
        """Tokens of text: all but [CLS], the last [SEP] and those between."""
        return self.max_tokens - 2 - self.special.separators

    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        return self.draw(text, Random(int(rng.integers(2**63))))

    def draw(self, text: Text, rng: Random) -> ExampleRanges:
        """Plan with the given draws."""
        plan = ExampleRanges()
        for document in range(text.document_count):
            self._document(text, document, rng, plan)
        return plan

    def _document(self, text: Text, document: int, rng: Random, plan: ExampleRanges) -> None:
        borders = text.sentences
        sentence, end = text.documents[document], text.documents[document + 1]
        target = self.room
        if rng.random() < self.short_share:  # once for a document, as in the reference
            target = rng.randint(2, self.room)
        while sentence < end:
            last = sentence + 1
            enough = borders[sentence] + target
            while last < end and borders[last] < enough:
                last += 1
            sentence = self._chunk(text, document, (sentence, last), target, rng, plan)

    @abstractmethod
    def _chunk(
        self, text: Text, document: int, chunk: tuple[int, int], target: int, rng: Random, plan: ExampleRanges
    ) -> int:
        """Add the example of sentences chunk[0] … chunk[1] - 1, and return the sentence to continue with."""


@dataclass(frozen=True)
class NextSentence(_Pairs):
    """Pairs for "does B follow A?": half of the time it does, else it starts at a random sentence of another document.

    Any document of the split has the same chance to be the other one. A chunk of one sentence has no rest and always takes
    a random B, so more than half are random.
    """

    min_documents: ClassVar[int] = 2

    def _chunk(
        self, text: Text, document: int, chunk: tuple[int, int], target: int, rng: Random, plan: ExampleRanges
    ) -> int:
        borders, (first, last) = text.sentences, chunk
        split = first + (rng.randint(1, last - first - 1) if last - first >= 2 else 1)
        a = borders[first], borders[split]
        if last - first > 1 and rng.random() >= 0.5:
            plan.add(cut_pair(a, (borders[split], borders[last]), self.room, rng), IN_ORDER)
            return last
        assert text.others is not None, "pairs need the documents of the whole split"
        shard, start, stop = text.others.draw(text.numbers[document], target - (a[1] - a[0]), rng)
        plan.add(cut_pair(a, (start, stop), self.room, rng), RANDOM, shard)
        return split  # the sentences that were not used start the next chunk


@dataclass(frozen=True)
class SentenceOrder(_Pairs):
    """Pairs of consecutive text, in order or swapped (Lan et al. 2019, arXiv 1909.11942).

    A chunk of one sentence is cut inside it, at a word. (ALBERT's code takes a random B there and calls it swapped.)
    """

    def _chunk(
        self, text: Text, document: int, chunk: tuple[int, int], target: int, rng: Random, plan: ExampleRanges
    ) -> int:
        borders, (first, last) = text.sentences, chunk
        start, stop = borders[first], borders[last]
        if last - first >= 2:
            middle = borders[first + rng.randint(1, last - first - 1)]
        else:
            middle = _word_start(text, start, stop, rng)
        if middle < stop:
            a, b = cut_pair((start, middle), (middle, stop), self.room, rng)
            swapped = rng.random() < 0.5
            plan.add((b, a) if swapped else (a, b), SWAPPED if swapped else IN_ORDER)
        return last


def cut_pair(a: Piece, b: Piece, room: int, rng: Random) -> tuple[Piece, Piece]:
    """Take tokens from the longer piece, from its front or its back at random, until both fit; a tie takes from B."""
    (a_start, a_stop), (b_start, b_stop) = a, b
    a_size, b_size = a_stop - a_start, b_stop - b_start
    for _ in range(a_size + b_size - room):
        front = rng.random() < 0.5
        if a_size > b_size:
            a_size -= 1
            a_start += front
        else:
            b_size -= 1
            b_start += front
    return (a_start, a_start + a_size), (b_start, b_start + b_size)


def _word_start(text: Text, start: int, stop: int, rng: Random) -> int:
    """Return a random place inside a sentence where a word starts; `stop` where there is none."""
    if stop - start < 2:
        return stop
    place = start + rng.randint(1, stop - start - 1)
    while place < stop and text.continues[place]:
        place += 1
    return place
