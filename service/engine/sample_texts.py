"""Made-up texts that any model can run, for warm-up and timing."""

import numpy as np

from bert.encoding import MASK_WORD, Encoding
from bert.packing import TEXT_TOKENS

WARM_UP_TOKENS = 16
"""Length in tokens of the text that every model runs before it counts as loaded."""


def sample_texts(tokens: int, text_tokens: int = TEXT_TOKENS) -> list[Encoding]:
    """Return texts of up to `text_tokens` tokens each, `tokens` in all.

    Their ids are 0, valid in any vocabulary. Each has one mask, for fill-mask models.
    """
    whole, rest = divmod(tokens, text_tokens)
    lengths = [text_tokens] * whole + ([rest] if rest else [])
    return [sample_text(length) for length in lengths]


def sample_text(length: int) -> Encoding:
    """Return one text of `length` tokens."""
    zeros = np.zeros(length, np.int32)
    word_ids = np.arange(length, dtype=np.int32) - 1
    word_ids[-1] = -1
    sequence_ids = np.minimum(word_ids, 0)
    word_ids[1 : min(2, length - 1)] = MASK_WORD
    return Encoding(zeros, zeros, np.zeros((length, 2), np.int32), word_ids, sequence_ids)
