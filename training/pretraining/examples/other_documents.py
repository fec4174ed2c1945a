"""Sentences of any document of a split, read from the disk one at a time.

A corpus may be larger than the memory, and holds thousands of files: each read opens a file and closes it again, which
costs 10 µs where the system has the file in memory.
"""

from bisect import bisect_right
from itertools import accumulate
from random import Random

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from training.corpus.shards import Corpus
from training.pretraining.examples.base import Bools, Ints

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
