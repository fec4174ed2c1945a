"""Damaged tokenizer files: refused by name, and no panic of the library at a text."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import CheckpointError
from bert.text.damage import damage_refused
from bert.tokenizer import Tokenizer
from tests.support.sentencepiece_files import charsmap
from tests.support.tokenizers import with_compiled_normalizer

CHARSMAP = charsmap({"Ａ": "A", "ﬁ": "fi", "é": "e", "㍿": "株式会社"})
TEXTS = ["Ａ ﬁ é ㍿ 가 🙂", "".join(map(chr, range(0x20, 0x3000))), "\U00010ffff"]
ARRAY = 4 + int.from_bytes(CHARSMAP[:4], "little")


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"", "0 bytes and an array of 0"),
        (CHARSMAP[:100], f"100 bytes and an array of {ARRAY - 4}"),
        (struct.pack("<I", 1 << 30) + CHARSMAP[4:], "an array of 1073741824"),
        (CHARSMAP + b"\xff", "can't decode"),
        (struct.pack("<II", 4, 1 << 20), "points beyond its end"),
        (CHARSMAP[:ARRAY], "a replacement begins outside its texts"),
        ("!!!", "base64"),
        (None, "invalid type: null"),
        (5, "invalid type: integer"),
    ],
)
def test_a_damaged_normalisation_is_refused_by_name(damaged: object, reason: str) -> None:
    with pytest.raises(CheckpointError, match=rf"t\.json cannot be read as a tokenizer: .*{reason}"):
        Tokenizer.parse(with_compiled_normalizer(damaged), Path("t.json"))


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(CHARSMAP) - 1), st.integers(0, 255)), min_size=1, max_size=20
    )
)
def test_a_normalisation_that_is_read_never_panics(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(CHARSMAP)
    for at, value in changes:
        damaged[at] = value
    try:
        tokenizer = Tokenizer.parse(with_compiled_normalizer(bytes(damaged)), Path("t.json"))
    except CheckpointError:
        return
    assert len(tokenizer.pieces(TEXTS)) == len(TEXTS)


ESCAPES = [(b"/", rb"\/"), (b"charsmap", rb"charsm\u0061p")]


@pytest.mark.parametrize("escape", [(b"", b""), *ESCAPES])
def test_a_whole_normalisation_is_read_however_it_is_escaped(escape: tuple[bytes, bytes]) -> None:
    content = with_compiled_normalizer(CHARSMAP)
    assert escape[0] in content
    tokenizer = Tokenizer.parse(content.replace(*escape), Path("t.json"))
    assert tokenizer.ids(["ＡＡ"]) == tokenizer.ids(["AA"])


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_damaged_normalisation_is_refused_however_it_is_escaped(escape: tuple[bytes, bytes]) -> None:
    content = with_compiled_normalizer(struct.pack("<II", 4, 1 << 20) + b"???")  # which has a slash in base64
    assert escape[0] in content
    with pytest.raises(CheckpointError, match="points beyond its end"):
        Tokenizer.parse(content.replace(*escape), Path("t.json"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_damage(error: type[BaseException]) -> None:
    with pytest.raises(error), damage_refused(Path("t.json"), "a tokenizer"):
        raise error
