"""Texts of random ids and given lengths, and batches of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert.encoding import Encoding

LONGEST = 512
MIXED = "mixed"
"""Log-normal lengths, 45 tokens on average, up to 512."""


def random_texts(lengths: str, tokens: int, pieces: int = 30_000) -> list[Encoding]:
    """Return texts of random ids below `pieces`, about so many tokens in all; `lengths` is MIXED, or each one's length."""
    rng = np.random.default_rng(0)
    if lengths == MIXED:
        drawn = rng.lognormal(np.log(30), 0.9, max(1, tokens // 45)).astype(int).clip(4, LONGEST)
    else:
        drawn = np.full(max(1, tokens // int(lengths)), int(lengths))
    return [as_text(rng.integers(pieces, size=length, dtype=np.int32)) for length in drawn]


def in_batches(texts: Sequence[Encoding], tokens: int) -> list[list[Encoding]]:
    """Cut texts, in their order, into batches of at most so many tokens (or of one longer text)."""
    batches: list[list[Encoding]] = []
    room = 0
    for text in texts:
        if not batches or len(text) > room:
            batches.append([])
            room = tokens
        batches[-1].append(text)
        room -= len(text)
    return batches


def as_text(ids: Any) -> Encoding:
    """Return ids (T,) as one text."""
    zeros, words = np.zeros(len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
    return Encoding(ids, zeros, np.zeros((len(ids), 2), np.int32), words, zeros)
