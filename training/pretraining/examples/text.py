"""The documents of a shard side by side, and examples as ranges of their tokens.

An example is a few numbers until it is taken. So the ranges of a whole shard are small and quick to plan, and each of
several processes makes only its own examples. N tokens, S sentences, D documents, E examples, P pieces.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from training.corpus.shards import Document
from training.pretraining.examples.base import Bools, Bytes, Example, Ints, SpecialIds
from training.pretraining.examples.other_documents import OtherDocuments

Offsets = NDArray[np.int64]
_OWN = -1
"""Number that stands for the text itself where a shard's number is expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Documents side by side; empty sentences and empty documents are left out."""

    tokens: Ints
    """(N,)"""
    continues: Bools
    """(N,)"""
    sentences: list[int]
    """(S + 1,) first token of each sentence, and N; plain integers, because planning reads them one by one."""
    documents: list[int]
    """(D + 1,) first sentence of each document, and S."""
    numbers: list[int]
    """(D,) number of each document in its split."""
    others: OtherDocuments | None
    """All documents of the split."""

    @classmethod
    def of(
        cls, documents: Sequence[Document], first: int = 0, others: OtherDocuments | None = None
    ) -> "Text":
        """Lay documents side by side, of which the first has the number `first` among all `others` of its split."""
        numbers = [first + i for i, document in enumerate(documents) if len(document.tokens)]
        kept = [document for document in documents if len(document.tokens)]
        lengths = [np.diff(document.sentences) for document in kept]
        lengths = [each[each > 0] for each in lengths]
        return cls(
            np.concatenate([np.zeros(0, np.int32), *(document.tokens for document in kept)]),
            np.concatenate([np.zeros(0, np.bool_), *(document.continues for document in kept)]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])).tolist(),
            np.cumsum([0, *(len(each) for each in lengths)]).tolist(),
            numbers,
            others,
        )

    @property
    def document_count(self) -> int:
        """Number of documents, D."""
        return len(self.documents) - 1


@dataclass(slots=True)
class ExampleRanges:
    """Token ranges of each example, collected example by example."""

    starts: list[int] = field(default_factory=list)
    """(P,) first token of each piece of running text"""
    stops: list[int] = field(default_factory=list)
    """(P,) token after the last of each piece"""
    offsets: list[int] = field(default_factory=lambda: [0])
    """(E + 1,) first piece of each example, and P"""
    labels: list[int] = field(default_factory=list)
    """(E,) pair labels"""
    shards: list[int] = field(default_factory=list)
    """(P,) shard whose tokens each piece counts, _OWN for the text itself"""

    def add(self, pieces: Sequence[tuple[int, int]], label: int = -1, shard: int = _OWN) -> None:
        """Add an example of one or more pieces (start, stop), the last one of another document's shard if that is given."""
        for start, stop in pieces:
            self.starts.append(start)
            self.stops.append(stop)
            self.shards.append(_OWN)
        self.shards[-1] = shard
        self.offsets.append(len(self.starts))
        self.labels.append(label)


class Examples:
    """Examples that are made when they are taken: [CLS] piece [SEP] piece [SEP] …"""

    def __init__(self, text: Text, special: SpecialIds, plan: ExampleRanges, *, segments: bool) -> None:
        """Make pairs of two segments with `segments`, else pieces of one segment."""
        self._text, self._special, self._segments = text, special, segments
        self._shards = np.array(plan.shards, np.int32)
        self._starts, self._stops = np.array(plan.starts, np.int64), np.array(plan.stops, np.int64)
        self._offsets, self._labels = np.array(plan.offsets, np.int64), np.array(plan.labels, np.int8)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, indices: NDArray[np.integer]) -> list[Example]:
        """Make the examples of these indices together: several times faster than one by one."""
        first, last = self._offsets[indices], self._offsets[indices + 1]
        pieces = ranges(first, last)
        if not len(pieces):
            return []
        place = pieces - np.repeat(first, last - first)  # of a piece in its example
        starts, stops = self._starts[pieces], self._stops[pieces]
        is_first = place == 0
        size = stops - starts + 1 + is_first  # its [SEP], and the first one's [CLS]
        if self._segments:
            goes_on = place + 1 < np.repeat(last - first, last - first)
            size += (self._special.separators - 1) * goes_on  # RoBERTa's second one, between two segments
        ends = np.cumsum(size)
        begins = ends - size + is_first
        ids = np.full(ends[-1], self._special.sep, np.int32)
        ids[(ends - size)[is_first]] = self._special.cls
        continues, special = np.zeros(len(ids), np.bool_), np.ones(len(ids), np.bool_)
        special[ranges(begins, begins + stops - starts)] = False
        self._fill(ids, continues, pieces, begins)
        # A text that is cut at its front begins a new word.
        continues[begins] = False
        segment = place * (self._special.second_segment if self._segments else 0)
        segments: Bytes = np.repeat(segment.astype(np.int8), size)
        borders = ends[np.cumsum(last - first) - 1].tolist()
        labels = self._labels[indices].tolist()
        return [
            Example(ids[a:b], segments[a:b], continues[a:b], special[a:b], label)
            for a, b, label in zip([0, *borders[:-1]], borders, labels, strict=True)
        ]

    def _fill(self, ids: Ints, continues: Bools, pieces: Offsets, begins: Offsets) -> None:
        """Write the tokens of pieces, each from where it begins, and whether they go on with a word."""
        starts, stops = self._starts[pieces], self._stops[pieces]
        own = self._shards[pieces] == _OWN
        at = ranges(begins[own], (begins + stops - starts)[own])
        source = ranges(starts[own], stops[own])
        ids[at], continues[at] = self._text.tokens[source], self._text.continues[source]
        for i in np.flatnonzero(~own).tolist():
            assert self._text.others is not None, "the plan has pieces of other documents"
            begin, start, stop = int(begins[i]), int(starts[i]), int(stops[i])
            found = self._text.others.tokens(int(self._shards[pieces[i]]), start, stop)
            end = begin + stop - start
            ids[begin:end], continues[begin:end] = found


@dataclass(frozen=True)
class Builder(ABC):
    """Documents to examples of at most `max_tokens` tokens, [CLS] and [SEP] among them."""

    max_tokens: int
    special: SpecialIds
    short_share: float = 0.1
    """Share of documents whose examples have a random shorter length, in builders that have such."""

    min_documents: ClassVar[int] = 0
    """Least number of documents that a split must have."""
    pairs: ClassVar[bool] = False
    """True for examples of two segments."""

    def plan(self, text: Text, rng: np.random.Generator) -> Examples:
        """Plan the examples of a text."""
        return Examples(text, self.special, self._plan(text, rng), segments=self.pairs)

    @abstractmethod
    def _plan(self, text: Text, rng: np.random.Generator) -> ExampleRanges:
        """Return the token ranges of each example."""


def ranges(starts: Offsets, stops: Offsets) -> Offsets:
    """Return arange(start, stop) of each pair, one after another."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    flat: Offsets = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return flat
