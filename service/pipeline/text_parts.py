"""Cutting texts into parts that are tokenised one by one, and joining the pieces.

Parts end where the tokenizer splits anyway, so their pieces are exactly the whole text's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from bert.encoding import Ints, Pieces
from bert.tokenizer import Tokenizer

PART_CHARACTERS = 2**13
"""Size of a part: 10 ms of work, 60 ms if each character is a token."""
TEXT_CHARACTERS = 64
"""Fixed cost of a text, in characters."""


@dataclass(frozen=True, slots=True)
class Part:
    """Whole texts that are tokenised together, or a part of a long one."""

    text: int
    """Index of its first text."""
    texts: list[str]
    start: int = 0
    """Index of its first character in a text that was cut."""
    is_whole: bool = True
    """False for a part of a text that was cut."""

    @property
    def size(self) -> int:
        """Return its cost in characters."""
        return cost(self.texts)


def cost(texts: Sequence[str]) -> int:
    """Return the cost of tokenising texts, in characters."""
    return sum(map(len, texts)) + TEXT_CHARACTERS * len(texts)


def split_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[Part]:
    """Group neighbouring texts up to PART_CHARACTERS, and cut longer ones."""
    parts, group, size = list[Part](), list[str](), 0
    for index, text in enumerate(texts):
        needs = len(text) + TEXT_CHARACTERS
        if group and size + needs > PART_CHARACTERS:
            parts.append(Part(index - len(group), group))
            group, size = [], 0
        if needs > PART_CHARACTERS:
            parts += _cut(index, text, tokenizer)
        else:
            group.append(text)
            size += needs
    return [*parts, Part(len(texts) - len(group), group)] if group else parts


def _cut(index: int, text: str, tokenizer: Tokenizer) -> Iterator[Part]:
    """Cut a text where its pieces are unaffected; not at all where no such place is known."""
    start = 0
    if split := tokenizer.cut_pattern:
        while found := split.search(text, start + PART_CHARACTERS):
            yield Part(index, [text[start : found.start()]], start, is_whole=False)
            start = found.start()
    yield Part(index, [text[start:]], start, is_whole=False)


def join_parts(parts: Sequence[Part], pieces: Sequence[Sequence[Pieces]]) -> list[Pieces]:
    """Return the pieces of each text; `pieces` are those of the parts, which may come in any order."""
    texts = list[list[tuple[int, Pieces]]]()
    for part, found in sorted(
        zip(parts, pieces, strict=True), key=lambda pair: (pair[0].text, pair[0].start)
    ):
        if part.start:
            texts[-1].append((part.start, found[0]))
        else:
            texts += [[(0, each)] for each in found]
    return [_joined([each for _, each in text], [start for start, _ in text]) for text in texts]


def _joined(parts: Sequence[Pieces], starts: Sequence[int]) -> Pieces:
    """Join the pieces of one text's parts; `starts` are the parts' first characters."""
    if len(parts) == 1:
        return parts[0]

    segments = [part.segments for part in parts if part.segments is not None]

    def word_ids() -> Ints:
        counts = (int(part.word_ids.max(initial=-1)) + 1 for part in parts)
        return np.concatenate(
            [
                np.where(part.word_ids < 0, part.word_ids, part.word_ids + np.int32(before))
                for part, before in zip(parts, accumulate(counts, initial=0), strict=False)
            ]
        )

    return Pieces(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.offsets + np.int32(start) for part, start in zip(parts, starts, strict=True)]),
        word_ids,
        np.concatenate(segments) if len(segments) == len(parts) else None,
    )
