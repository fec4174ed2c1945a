"""Reads text files as users have them: UTF-8, with or without a byte order mark, any line ending."""

from pathlib import Path

from bert.errors import DataError
from bert.unicode import is_unicode

NOT_UNICODE = "is not valid Unicode: it has half of a surrogate pair"


def read_text(path: str | Path) -> str:
    """Return the whole file as text.

    Raises DataError with the line when the file is not UTF-8, and without one when it cannot be read or is
    empty.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # With a byte order mark the decoder counts from behind it; a line is all that we need.
        line = raw.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise DataError(path, line, f"is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from error
    if not text.strip():
        raise DataError(path, None, "is empty")
    return text


def read_lines(path: str | Path) -> list[str]:
    r"""Return the lines without their ends.

    Splits on \n and \r\n only: `str.splitlines` would also cut at the Unicode separators inside a text and
    put every later label on the wrong line.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def holds_unicode(value: object) -> bool:
    """Tell whether a text, or each text of a list, is valid Unicode; what is no text is."""
    if isinstance(value, list | tuple):
        return all(map(holds_unicode, value))
    return not isinstance(value, str) or is_unicode(value)
