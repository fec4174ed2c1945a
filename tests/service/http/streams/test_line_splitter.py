"""Lines of a body in any blocks, against one split of the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.problems import ProblemError
from service.http.streams.body_lines import LineSplitter

MAX_BYTES = 6
PIECES = st.lists(st.sampled_from([b"\n", b"\n", b"\r\n", b" ", b"\t", b"a", b"bcd", b"\x0c"]), max_size=40)


def expected(body: bytes) -> list[tuple[int, bytes | None]]:
    """Return number and content of each line that is not blank, None for one that is too long."""
    numbered = enumerate(body.split(b"\n"), 1)
    lines = [(number, line.lstrip(b" \t\r")) for number, line in numbered if line.strip(b" \t\r")]
    return [(number, line if len(line) <= MAX_BYTES else None) for number, line in lines]


def found(splitter: LineSplitter, blocks: list[bytes]) -> list[tuple[int, bytes | None]]:
    lines = [line for block in blocks for line in splitter.split(block)]
    lines += splitter.rest()
    return [(number, line if isinstance(line, bytes) else None) for number, line in lines]


@given(blocks=st.lists(PIECES.map(b"".join), max_size=8))
def test_lines_do_not_depend_on_the_blocks_that_they_come_in(blocks: list[bytes]) -> None:
    splitter = LineSplitter(MAX_BYTES)
    try:
        assert found(splitter, blocks) == expected(b"".join(blocks))
    except ProblemError:
        words = b"".join(blocks).replace(b"\x0c", b"a").replace(b"bcd", b"aaa").split(b"a")
        assert max(map(len, words)) > MAX_BYTES


def test_blank_lines_in_a_row_may_have_the_bytes_of_one_line() -> None:
    splitter = LineSplitter(MAX_BYTES)
    assert found(splitter, [b"a\n", b"\n" * 3, b"\n\r\n", b"b\n", b"\n" * 6, b"c"]) == [
        (1, b"a"),
        (7, b"b"),
        (14, b"c"),
    ]
    with pytest.raises(ProblemError, match="over 6 bytes of blank lines follow one another"):
        found(LineSplitter(MAX_BYTES), [b"a\n", b"\n" * 3, b" \n\r\n"])


def test_the_bytes_of_a_line_are_held_until_the_next_one_is_asked_for() -> None:
    splitter = LineSplitter(MAX_BYTES)
    lines = splitter.split(b"abc\nde")
    assert next(lines) == (1, b"abc")
    assert splitter.held_bytes == 3
    assert list(lines) == []
    assert splitter.held_bytes == 2
