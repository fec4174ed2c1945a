"""Damage in tokenizer files, refused by name: the `tokenizers` library raises bare exceptions, or its Rust panics."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bert.errors import CheckpointError

MAX_ARRAY_BYTES = 1 << 24
"""Longest array of a compiled normalisation; that of NFKC has a quarter of a million bytes."""
_IS_PLACE, _IS_WIDE, _HAS_PLACE = 1 << 31, 1 << 9, 1 << 8
_BYTE = 255
"""The next unit is looked up at an offset with a byte of the text in these bits."""


@contextmanager
def damage_refused(file: Path, kind: str) -> Iterator[None]:
    """Raise CheckpointError, which names the file, for whatever else the block raises, a panic too."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except CheckpointError as error:
        if file.name in str(error):
            raise
        raise type(error)(f"{file}: {error}") from None
    except BaseException as error:  # pyo3's PanicException is no Exception
        raise CheckpointError(f"{file} cannot be read as {kind}: {error}") from None


def check_normalizer(values: dict[str, Any]) -> None:
    """Look over an object of a `tokenizer.json`. Raises ValueError as `check_charsmap` does for a compiled normalisation."""
    content = values.get("precompiled_charsmap")
    if isinstance(content, str):
        check_charsmap(base64.b64decode(content, validate=True))


def check_charsmap(content: bytes) -> None:
    """Raise ValueError for a compiled normalisation of SentencePiece in which a text could be looked up out of bounds.

    The library would panic, which prints lines of its own, and perhaps only at a request with a rare character. The content
    is the length of a double array, the array, and the replacements, each ended by a zero. The array is that of
    https://github.com/s-yata/darts-clone: a unit holds a label and the offset of what follows, or a replacement's place.
    """
    size = int.from_bytes(content[:4], "little")
    if size == 0 or size % 4 or size > min(len(content) - 4, MAX_ARRAY_BYTES):
        raise ValueError(f"precompiled_charsmap has {len(content)} bytes and an array of {size}")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    texts = np.frombuffer(content[4 + size :].decode("utf-8").encode(), np.uint8)
    nodes = np.flatnonzero(units & _IS_PLACE == 0)
    follows = nodes ^ (units[nodes] >> 10 << np.where(units[nodes] & _IS_WIDE, 8, 0))
    if len(nodes) == 0 or (follows | _BYTE).max() >= len(units):
        raise ValueError("precompiled_charsmap is damaged: its array points beyond its end")
    places = units[follows[units[nodes] & _HAS_PLACE != 0]] & (_IS_PLACE - 1)
    if places.max(initial=-1) >= len(texts) or (texts[places] & 0xC0 == 0x80).any():
        raise ValueError(
            "precompiled_charsmap is damaged: a replacement begins outside its texts or in a character"
        )
