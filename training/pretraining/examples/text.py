"""The documents of a shard side by side, and examples as ranges of their tokens.

An example is a few numbers until it is taken. So the ranges of a whole shard are small and quick to plan, and each of
several processes makes only its own examples. Pieces of other documents are read from the disk one at a time: a corpus may
be larger than the memory, and holds thousands of files. Each read opens a file and closes it again, which costs 10 µs where
the system has the file in memory. N tokens, S sentences, D documents, E examples, P pieces.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from training.corpus.shards import Corpus, Document
from training.pretraining.examples.base import Bools, Bytes, Example, Ints, SpecialIds

Offsets = NDArray[np.int64]
_OWN = -1
"""Number that stands for the text itself where a shard's number is expected."""
MAX_DRAWS = 10_000
"""Draws after which a split is taken to have no other document; of two documents each draw gives the other with 1/2."""


class OtherDocuments:
    """The documents of a split, numbered through its shards; small to send to processes."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        """Read nothing but the counts of corpus.json."""
        self._folder, self._split, self._types = corpus.folder, split, corpus.part_types
        # Strings: a Path costs as much as reading its file.
        self._files = [f"{corpus.folder}/{entry['name']}." for entry in corpus.entries(split)]
        self._ends = list(accumulate(int(entry["documents"]) for entry in corpus.entries(split)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def first(self, shard: int) -> int:
        """Return the number of a shard's first document."""
        return self._ends[shard - 1] if shard else 0

    def draw(self, own: int, size: int, rng: Random) -> tuple[int, int, int]:
        """Draw a document that is not number `own`, and sentences of it from a random one on.

        Return the shard, the first token in it and the token after the last. There are at least `size` tokens, or all up to
        the document's end, and at least a sentence. The draws are those of google-research/bert, which gives up after ten
        and takes the same document. Raises DataError where there is no other document with text.
        """
        for _ in range(MAX_DRAWS):
            number = rng.randint(0, len(self) - 1)
            if number == own:
                continue
            shard = bisect_right(self._ends, number)
            first, end = self._read(shard, "documents", number - self.first(shard), 2).tolist()
            if first < end:
                start, stop = self._sentences(shard, first + rng.randint(0, end - first - 1), end, size)
                if start < stop:
                    return shard, start, stop
        raise DataError(self._folder, None, f"split {self._split!r} has no second document with text")

    def _sentences(self, shard: int, sentence: int, end: int, size: int) -> tuple[int, int]:
        """Return the tokens of sentences, fewer than those up to `end` where `size` are enough."""
        start, *stops = self._read(shard, "sentences", sentence, end - sentence + 1).tolist()
        return start, next((stop for stop in stops if stop >= start + size), stops[-1])

    def tokens(self, shard: int, start: int, stop: int) -> tuple[Ints, Bools]:
        """Return the tokens of a shard, and True where they go on with a word."""
        ids = self._read(shard, "tokens", start, stop - start).astype(np.int32)
        return ids, self._read(shard, "continues", start, stop - start).astype(np.bool_)

    def _read(self, shard: int, part: str, start: int, count: int) -> NDArray[np.unsignedinteger]:
        kind, file = self._types[part], self._files[shard] + part
        try:
            values: NDArray[np.unsignedinteger] = np.fromfile(file, kind, count, offset=start * kind.itemsize)
        except OSError as error:
            raise DataError(file, None, f"cannot be read: {error.strerror}") from None
        if len(values) != count:
            raise DataError(file, None, f"ends before value {start + count}")
        return values


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
