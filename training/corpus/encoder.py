"""Sentences to ids, several times as fast as the tokenizer, which gets only words not met before.

BERT's tokenizer treats each part of a text between spaces, and each Chinese character, apart from all others. Byte-level
BPE and most Unigram tokenizers do so with words, each with the single space before it. So the ids of a text are those
of its parts, one after the other, and a table of the parts met so far gives most of them. Other tokenizers get whole
sentences.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import rjieba
from numpy.typing import NDArray

from bert.tokenizer import Tokenizer
from training.corpus.shards import Document

Ints = NDArray[np.int64]
MAX_PARTS = 200_000
"""Most parts in the table, about 40 MB; a full table is cleared."""
BATCH_CHARACTERS = 1 << 18
"""Text to split at a time: the parts of a long document need many times its memory."""
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
"""Characters that BERT's tokenizer makes tokens of their own (`is_chinese_char` of `tokenizers`)."""
_IS_CHINESE = re.compile(f"[{CHINESE}]")
_AROUND_CHINESE = re.compile(f"[{CHINESE}]|[ \n]|[^ \n{CHINESE}]+")
_LINES = re.compile("\n|[^\n]+")
_BEFORE_SPACES = re.compile(r"\n|[^\S\n]*\S+(?:(?! \S)[^\S\n]+\S*)*|[^\S\n]+")
"""A line break, or text up to the next single space between two words (`SPLIT_SPACE` of `bert.text.cuts`)."""


class SentenceEncoder:
    """Encodes sentences to tokens, with flags for tokens that continue a word."""

    def __init__(self, tokenizer: Tokenizer, *, chinese: bool = False, segment_words: bool = False) -> None:
        """Encode texts that are mostly `chinese` or not.

        `segment_words` finds Chinese words with jieba, for a tokenizer that splits Chinese characters.
        """
        self._chinese = tokenizer.splits_chinese and (chinese or segment_words)
        self._spaces = tokenizer.splits_at_spaces
        self._cuts_words = tokenizer.cut_pattern is not None
        self.reads_spaces = not tokenizer.splits_at_spaces
        """True where a space before a sentence may change its first piece."""
        self._segment_words = segment_words
        self._table = PartTable(tokenizer)
        self._goes_on = tokenizer.continuing_pieces()  # (V,)

    def encode(self, sentences: Sequence[str]) -> Document:
        """Return the tokens of S sentences without line breaks; a sentence may have no tokens."""
        made = [self._encode(batch) for batch in _batches(sentences)]
        if len(made) == 1:
            return made[0]
        lengths = np.concatenate([np.diff(each.sentences) for each in made])
        return Document(
            np.concatenate([each.tokens for each in made]),
            np.concatenate([each.continues for each in made]),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        )

    def _encode(self, sentences: Sequence[str]) -> Document:
        parts = self._parts(sentences)
        rows = self._table.rows(parts)  # (P,)
        counts = self._table.counts[rows]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        places = np.repeat(self._table.firsts[rows] - (ends - counts), counts) + np.arange(total)
        tokens = self._table.ids[places]
        continues = self._goes_on[tokens]
        if self._segment_words:
            continues[(ends - counts)[self._inside_words(sentences, parts, rows)]] = True
        borders = np.concatenate([[0], ends[rows == PartTable.LINE_BREAK], [total]])
        continues[borders[borders < total]] = (
            False  # the first word may lack the space that begins the others
        )
        return Document(tokens, continues, borders.astype(np.int32))

    def _parts(self, sentences: Sequence[str]) -> list[str]:
        """Split sentences into parts, with a line break between any two."""
        if self._chinese:
            return _AROUND_CHINESE.findall("\n".join(sentences))
        if self._spaces:
            return " \n ".join(sentences).split(" ")
        return (_BEFORE_SPACES if self._cuts_words else _LINES).findall("\n".join(sentences))

    def _inside_words(self, sentences: Sequence[str], parts: list[str], rows: Ints) -> NDArray[np.bool_]:
        """Return (P,), True for a Chinese character that continues the word of the character before it."""
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        begins_word = word_starts("\n".join(sentences))[np.cumsum(lengths) - lengths]
        chinese = self._table.chinese[rows]
        after_chinese = np.concatenate([[False], chinese[:-1]])
        inside: NDArray[np.bool_] = chinese & after_chinese & ~begins_word & (self._table.counts[rows] > 0)
        return inside


class PartTable:
    """Ids of the parts of text met so far, in flat arrays; row 0 is the line break, without ids."""

    LINE_BREAK = 0

    def __init__(self, tokenizer: Tokenizer, max_parts: int = MAX_PARTS) -> None:
        """Start with the line break alone."""
        self._tokenizer, self._max_parts = tokenizer, max_parts
        self._clear()

    def rows(self, parts: Sequence[str]) -> Ints:
        """Return the row of each part, after adding the new parts."""
        new = set(parts).difference(self._rows)
        if new and len(self._rows) + len(new) > self._max_parts:
            self._clear()
            new = set(parts).difference(self._rows)
        if new:
            self._add(list(new))
        return np.fromiter(map(self._rows.__getitem__, parts), np.int64, len(parts))

    def _clear(self) -> None:
        self._rows: dict[str, int] = {"\n": self.LINE_BREAK}
        self.ids: NDArray[np.int32] = np.zeros(0, np.int32)
        """Ids of all parts."""
        self.firsts: Ints = np.zeros(1, np.int64)
        """(rows,) start of each part in `ids`."""
        self.counts: Ints = np.zeros(1, np.int64)
        """(rows,) number of ids of each part."""
        self.chinese: NDArray[np.bool_] = np.zeros(1, np.bool_)
        """(rows,) True for a Chinese character."""

    def _add(self, parts: list[str]) -> None:
        encoded = self._tokenizer.ids(parts)
        counts = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._rows.update(zip(parts, range(len(self._rows), len(self._rows) + len(parts)), strict=True))
        self.firsts = np.concatenate([self.firsts, len(self.ids) + np.cumsum(counts) - counts])
        self.counts = np.concatenate([self.counts, counts])
        self.ids = np.concatenate([self.ids, _flat(encoded)])
        self.chinese = np.concatenate(
            [self.chinese, [_IS_CHINESE.fullmatch(part) is not None for part in parts]]
        )


def word_starts(text: str) -> NDArray[np.bool_]:
    """Return (characters,) True where a word of jieba begins.

    Chinese has no spaces: without its words a masked word would be one character.
    """
    ends = np.cumsum(np.fromiter(map(len, rjieba.cut(text)), np.int64))
    assert not len(text) or ends[-1] == len(text), "jieba lost characters"
    starts = np.zeros(len(text) + 1, np.bool_)
    starts[0] = True
    starts[ends] = True
    return starts[:-1]


def _batches(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list of sentences into runs of about BATCH_CHARACTERS; an empty list is one run."""
    first = size = 0
    for index, sentence in enumerate(sentences):
        size += len(sentence)
        if size >= BATCH_CHARACTERS:
            yield sentences[first : index + 1]
            first, size = index + 1, 0
    if first < len(sentences) or not sentences:
        yield sentences[first:]


def _flat(rows: Iterable[Sequence[int]]) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(rows), np.int32)
