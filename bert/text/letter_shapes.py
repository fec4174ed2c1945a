"""Letter shapes: what an uncased tokenizer drops of a word, kept as the segment of its pieces. T pieces.

The field's models for names read shapes beside the words (Collobert et al. 2011, arXiv 1103.0398, section 4.1, "caps").
"""

import numpy as np

from bert.encoding import Ints

OTHER, LOWER, CAPITALISED, UPPER, MIXED, DIGITS = range(6)
"""Shapes in the order of their rows in the segment table. OTHER is that of special tokens, of punctuation and of
scripts without case, and has the number of the only segment that a base knows."""
SHAPES = 6


def piece_shapes(text: str, offsets: Ints, word_ids: Ints) -> Ints:
    """Return the shape of the word of each piece, (T,), from the pieces' offsets (T, 2) and word ids (T,)."""
    if not len(word_ids):
        return np.zeros(0, np.int32)
    edges = np.flatnonzero(np.append(True, word_ids[1:] != word_ids[:-1]))
    stops = np.append(edges[1:], len(word_ids))
    starts, ends = offsets[edges, 0].tolist(), np.maximum.reduceat(offsets[:, 1], edges).tolist()
    shapes = [shape_of(text[start:end]) for start, end in zip(starts, ends, strict=True)]
    found: Ints = np.repeat(np.array(shapes, np.int32), stops - edges)
    found[word_ids < 0] = OTHER
    return found


def shape_of(word: str) -> int:
    """Return the shape of a word. One capital alone is CAPITALISED, and digits with letters go by the letters."""
    if word.islower():
        return LOWER
    if word.isupper():
        return UPPER if sum(c.isalpha() for c in word) > 1 else CAPITALISED
    if word[:1].isupper() and word[1:].islower():
        return CAPITALISED
    if any(c.isupper() or c.islower() for c in word):
        return MIXED
    return DIGITS if any(c.isdigit() for c in word) else OTHER
