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
    """The ids of BERT's special tokens, and those of plain pieces."""

    cls: int
    sep: int
    pad: int
    mask: int
    unk: int
    plain: Ints
    """(P,) ascending: every id but the special and the [unused] ones; random replacements are drawn from them."""

    @classmethod
    def load(cls, path: Path) -> "SpecialIds":
        """Read the tokenizer of a folder (`tokenizer.json` or `vocab.txt`).

        Raises CheckpointError, also where the vocabulary has no plain pieces.
        """
        tokenizer = Tokenizer.load(path)
        pieces = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
        plain = [i for i, piece in enumerate(pieces) if not NOT_OF_TEXT.fullmatch(piece)]
        if not plain:
            raise CheckpointError(f"the vocabulary's {len(pieces)} pieces are all special or unused")
        mask, unk = tokenizer.mask_id, tokenizer.unk_id
        if mask is None or unk is None or len(tokenizer.form.between) > 1:
            raise CheckpointError(
                "pretraining needs a tokenizer with a mask, an unknown piece and BERT's pairs, [CLS] A [SEP] B [SEP]"
            )
        return cls(tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, mask, unk, np.array(plain, np.int32))
