"""Words of labelled data as the text that a service gets: blanks between them, and none in Chinese."""

import re
from collections.abc import Sequence

_ALONE = (
    "\u3001-\u3003\u3008-\u3011\u3014-\u301f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\U00020000-\U0003ffff"
)
"""Chinese characters and their punctuation: each is a word to `bert.text.offsets`, with blanks around it or without."""
_BESIDE = _ALONE + "\u3005-\u3007\u3040-\u30ff\uff10-\uff9f\u00b7\u2010-\u2027"
"""Those, kana, wide digits and letters, and marks that European texts have too."""
_UNSPACED = re.compile(f"[{_ALONE}][{_BESIDE}]|[{_BESIDE}][{_ALONE}]")


def join_words(words: Sequence[str]) -> str:
    """Return words as one text. SentencePiece and byte-level BPE have other pieces for Chinese with blanks in it.

    A blank is left out only where its absence leaves the words what they are (`bert.text.offsets.word_bounds`).
    """
    starts = word_starts(words)
    ends = (0, *(start + len(word) for start, word in zip(starts, words, strict=True)))
    parts = zip(starts, ends, words, strict=False)
    return "".join(" " * (start - end) + word for start, end, word in parts)


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the first code point of each word in `join_words(words)`."""
    starts, end, before = list[int](), -1, ""
    for word in words:
        starts.append(end + (0 if _UNSPACED.fullmatch(before + word[:1]) else 1))
        end, before = starts[-1] + len(word), word[-1:]
    return starts
