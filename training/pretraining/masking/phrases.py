"""Phrases of a list masked as one, other words whole: knowledge masking of ERNIE (Sun et al. 2019, arXiv 1904.09223)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from training.pretraining.examples.base import Bools
from training.pretraining.masking.base import MaskingBatch, Offsets
from training.pretraining.masking.words import WholeWordMasking, words


class PhraseList:
    """Phrases of two pieces or more, found by longest match."""

    def __init__(self, phrases: Iterable[Sequence[int]] = ()) -> None:
        """Index phrases of ids by their first two pieces; shorter ones are words already, and left out."""
        self._phrases = {tuple(phrase) for phrase in phrases if len(phrase) >= 2}
        lengths: defaultdict[int, set[int]] = defaultdict(set)
        for phrase in self._phrases:
            lengths[_pair(phrase[0], phrase[1])].add(len(phrase))
        self._lengths = {pair: sorted(found, reverse=True) for pair, found in lengths.items()}
        self._pairs = np.array(sorted(lengths), np.int64)

    def __len__(self) -> int:
        return len(self._phrases)

    def find(self, ids: NDArray[np.int32], borders: Bools) -> list[tuple[int, int]]:
        """Return start and stop of each phrase in ids (N,), from the left, the longest at each place.

        A phrase starts and stops where `borders` (N + 1,) allows it.
        """
        pairs = (ids[:-1].astype(np.int64) << 32) | ids[1:]
        likely = np.flatnonzero(np.isin(pairs, self._pairs) & borders[: max(0, len(ids) - 1)])
        plain, found, free = ids.tolist(), [], 0
        for start, pair in zip(likely.tolist(), pairs[likely].tolist(), strict=True):
            if start < free:
                continue
            for length in self._lengths[pair]:
                stop = start + length
                if stop <= len(plain) and borders[stop] and tuple(plain[start:stop]) in self._phrases:
                    found.append((start, stop))
                    free = stop
                    break
        return found


@dataclass(frozen=True)
class PhraseMasking(WholeWordMasking):
    """Whole words, and whole phrases where the list has them."""

    phrases: PhraseList = field(default_factory=PhraseList)

    def _units(self, batch: MaskingBatch) -> tuple[Offsets, Offsets]:
        starts = ~batch.continues
        for start, stop in self.phrases.find(batch.ids, np.append(starts, True)):
            starts[start + 1 : stop] = False
        return words(batch, starts)


def read_phrases(file: Path, tokenizer: Tokenizer) -> PhraseList:
    """Read a text file with a phrase a line, UTF-8; phrases with unknown pieces are left out.

    Where a space is a part of a piece, a phrase is found at a text's beginning and after a space. Raises
    DataError if the file cannot be read or no phrase of two pieces or more is left.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(file, None, f"cannot be read: {error}") from None
    written = [line for line in lines if line]
    if not tokenizer.splits_at_spaces:
        written += [f" {line}" for line in written]
    found = tokenizer.ids(written)
    phrases = PhraseList(ids for ids in found if tokenizer.unk_id not in ids)
    if not len(phrases):
        raise DataError(file, None, f"none of its {len(lines)} lines is a phrase of two known pieces or more")
    return phrases


def _pair(first: int, second: int) -> int:
    return (first << 32) | second
