"""Texts to pieces within bounds: no more tokens than may ever be queued, and no further than the deadline.

A text's length in tokens is not known before it is tokenised, so large ones are read a part after the other and given
up at the bound. Parts end where BERT splits anyway: what they give is exactly what the whole text gives.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from bert.errors import DeadlineExceededError
from bert.tokenizer import Pieces, Tokenizer
from service.call import Call
from service.texts import too_large

PART_CHARACTERS = 2**16
"""Texts up to this go to the tokenizer together; half a second of work at most."""

SPLIT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""Before each of these BERT's tokenizer begins anew: ASCII white space and punctuation."""
SPLIT_CHINESE = re.compile(r"[\t\n\r !-/:-@\[-`{-~\u4e00-\u9fff]")
"""And before each Chinese character, with tokenizers that part them."""


@dataclass(slots=True)
class Reader:
    """Tokenises the texts of one request."""

    call: Call
    tokenizer: Tokenizer
    max_tokens: int
    """Of the whole request; no queue has room for more."""
    only_ids: bool = False
    """Whether the task never asks where pieces lie in their texts."""
    tokens: int = 0
    """Read so far."""

    def check_deadline(self) -> None:
        """Raise DeadlineExceededError after it: nobody waits for what this thread does."""
        if time.monotonic() > self.call.deadline:
            raise DeadlineExceededError(self.call.timeout_ms)

    def check_tokens(self, tokens: int) -> None:
        """Raise the 413 of a request of so many tokens."""
        if tokens > self.max_tokens:
            raise too_large(tokens, self.max_tokens)

    @property
    def mask_id(self) -> int:
        """The tokenizer's [MASK]."""
        return self.tokenizer.mask_id

    def pieces(self, texts: Sequence[str], enough: int | None = None) -> list[Pieces]:
        """Return each text's pieces.

        Of a text's pieces `enough` may do: what lies beyond them counts for nothing and may be left unread. Raises
        the 413 of more tokens than fit in the queue, DeadlineExceededError, InputError for text that is not Unicode.
        """
        found: list[Pieces] = []
        for group in _groups(texts):
            if len(group[0]) > PART_CHARACTERS:
                found.append(self._long(group[0], enough))
            else:
                found += self._read(group, enough, only_ids=self.only_ids)
        return found

    def _read(self, texts: Sequence[str], enough: int | None, *, only_ids: bool = False) -> list[Pieces]:
        self.check_deadline()
        found = self.tokenizer.pieces(texts, only_ids=only_ids)
        self.tokens += sum(len(p) if enough is None else min(len(p), enough) for p in found)
        self.check_tokens(self.tokens)
        return found

    def _long(self, text: str, enough: int | None) -> Pieces:
        parts, starts, count = list[Pieces](), list[int](), 0
        for start, part in self._parts(text):
            parts += self._read([part], None if enough is None else enough - count)
            starts.append(start)
            count += len(parts[-1])
            if enough is not None and count >= enough:
                break
        return _joined(parts, starts)

    def _parts(self, text: str) -> Iterator[tuple[int, str]]:
        """Cut a text where its pieces do not notice, each part with its first index.

        Whole where the tokenizer is not BERT's.
        """
        start = 0
        if self.tokenizer.splits_at_spaces:
            split = SPLIT_CHINESE if self.tokenizer.splits_chinese else SPLIT
            while cut := split.search(text, start + PART_CHARACTERS):
                yield start, text[start : cut.start()]
                start = cut.start()
        yield start, text[start:]


def window_tokens(pieces: int, max_tokens: int, stride: int, prefix: int | None = None) -> int:
    """Return the tokens of all windows that `Tokenizer.windows` would make, without making them.

    `prefix` is the number of a question's pieces. 0 where it would find no room.
    """
    around = 2 if prefix is None else prefix + 3
    room = max_tokens - around
    if room < 1:
        return 0
    shared = min(stride, room // 2)
    more = max(0, -(-(pieces - room) // (room - shared)))
    return pieces + more * shared + (more + 1) * around


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Put neighbours together up to PART_CHARACTERS; a longer text is alone."""
    group: list[str] = []
    characters = 0
    for text in texts:
        if group and characters + len(text) > PART_CHARACTERS:
            yield group
            group, characters = [], 0
        group.append(text)
        characters += len(text)
    if group:
        yield group


def _joined(parts: Sequence[Pieces], starts: Sequence[int]) -> Pieces:
    """Put the pieces of a text's parts together; `starts` are the parts' first characters."""
    if len(parts) == 1:
        return parts[0]
    words = accumulate((int(part.word_ids.max(initial=-1)) + 1 for part in parts), initial=0)
    moved = list(zip(parts, starts, words, strict=False))
    return Pieces(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.offsets + np.int32(start) for part, start, _ in moved]),
        np.concatenate([part.word_ids + np.int32(first) for part, _, first in moved]),
    )
