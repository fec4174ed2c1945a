"""An example before and after masking, and the special ids.

T tokens of an example, M masked positions.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert.errors import CheckpointError
from bert.tokenizer import Tokenizer

Ints = NDArray[np.int32]
Bytes = NDArray[np.int8]
Bools = NDArray[np.bool_]

NOT_OF_TEXT = re.compile(r"\[.+\]|<.+>")
"""Pieces such as [CLS], [unused7], and <S> of the Chinese vocabulary: BERT splits at punctuation, so no text has them."""
PLACEHOLDER = re.compile(r"\[unused\d+\]|madeupword\d+|<.+>NOTUSED|\|\|\|.+\|\|\|")
"""Pieces of ModernBERT, RoBERTa and CamemBERT that stand for no text."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One sequence for the model, [CLS] and [SEP] placed, nothing masked yet."""

    ids: Ints
    """(T,)"""
    segment_ids: Bytes
    """(T,)"""
    continues: Bools
    """(T,): True for a piece that continues the word of the piece before, False for special tokens."""
    special: Bools
    """(T,): True for [CLS] and [SEP], which are never masked."""
    pair_label: int = -1
    """Label of a pair; -1 none; next sentence: 0 is next, 1 random; sentence order: 0 in order, 1 swapped."""


@dataclass(slots=True, eq=False)
class MaskedExample:
    """An example whose masked positions are to be predicted."""

    ids: Ints
    """(T,) after masking."""
    segment_ids: Bytes
    """(T,)"""
    positions: Ints
    """(M,) positions to predict, ascending."""
    labels: Ints
    """(M,) original ids at the positions."""
    special: Bools
    """(T,): True for [CLS] and [SEP]."""
    original: Ints
    """(T,) before masking."""
    pair_label: int = -1
    """Label of a pair, as in `Example`."""
    spans: Ints | None = None
    """(M, 2) first and last position of the masked span around each position."""


class SpecialIds(NamedTuple):
    """The ids of a tokenizer's special tokens, and those of plain pieces; [CLS] … stand for the tokenizer's own names."""

    cls: int
    sep: int
    pad: int
    mask: int
    unk: int | None
    plain: Ints
    """(P,) ascending: every id but the special and the unused ones; random replacements are drawn from them."""
    separators: int = 1
    """Number of [SEP] between the two segments of a pair: RoBERTa's tokenizer writes two."""
    second_segment: int = 1
    """Segment id of a pair's second segment."""

    @classmethod
    def load(cls, path: Path) -> "SpecialIds":
        """Read the tokenizer of a folder (`tokenizer.json`, or files that one is made of).

        Raises CheckpointError, also where the vocabulary has no plain pieces.
        """
        tokenizer = Tokenizer.load(path)
        form, mask = tokenizer.form, tokenizer.mask_id
        plain = _plain_ids(tokenizer)
        if not len(plain):
            raise CheckpointError(f"the vocabulary's {tokenizer.vocab_size} pieces are all special or unused")
        if mask is None or set(form.between) != {form.sep_id}:
            raise CheckpointError(
                "pretraining needs a tokenizer with a mask, and with nothing but [SEP] between two texts"
            )
        return cls(
            form.cls_id,
            form.sep_id,
            tokenizer.pad_id,
            mask,
            tokenizer.unk_id,
            plain,
            len(form.between),
            form.second_segment,
        )


def _plain_ids(tokenizer: Tokenizer) -> Ints:
    unused = NOT_OF_TEXT if tokenizer.has_bert_words else PLACEHOLDER
    special = tokenizer.special_ids()
    ids = (i for i in range(tokenizer.highest_id() + 1) if i not in special and tokenizer.has_id(i))
    return np.array([i for i in ids if not unused.fullmatch(tokenizer.id_to_token(i))], np.int32)
