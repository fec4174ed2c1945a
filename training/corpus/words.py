"""Words of Chinese text, which has no spaces: without them a masked word would be one character."""

import re

import numpy as np
import rjieba
from numpy.typing import NDArray

CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
"""Characters that BERT's tokenizer makes tokens of their own (`is_chinese_char` of `tokenizers`)."""
_IS_CHINESE = re.compile(f"[{CHINESE}]")


def is_chinese(character: str) -> bool:
    """Return True for a character that is a token of its own."""
    return _IS_CHINESE.fullmatch(character) is not None


def word_starts(text: str) -> NDArray[np.bool_]:
    """Return (characters,) True where a word of jieba begins."""
    ends = np.cumsum(np.fromiter(map(len, rjieba.cut(text)), np.int64))
    assert not len(text) or ends[-1] == len(text), "jieba lost characters"
    starts = np.zeros(len(text) + 1, np.bool_)
    starts[0] = True
    starts[ends] = True
    return starts[:-1]
