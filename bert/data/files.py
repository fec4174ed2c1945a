"""Reads text files as users have them: UTF-8, with or without a byte order mark, any line ending."""

import codecs
import json
import sys
from pathlib import Path
from typing import Any

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


def first_line(path: str | Path) -> str:
    """Return the first line that is not blank, without reading the others. Raises DataError as `read_text` does."""
    try:
        with Path(path).open("rb") as stream:
            found = next((line for line in stream if line.removeprefix(codecs.BOM_UTF8).strip()), b"")
            line = found.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        line = ""
    return line.rstrip("\r\n") if line.strip() else read_lines(path)[0]


def parse_json(text: str, path: str | Path, line: int | None = None) -> Any:
    """Return the value of a JSON text: a whole file, or one line of it. Raises DataError with the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"is not json: {error.msg} at column {error.colno}"
        raise DataError(path, line or error.lineno, reason) from error
    except RecursionError:
        raise DataError(path, line, "is json that is nested too deeply") from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise DataError(path, line, f"has a whole number of more than {digits:,} digits") from None


def holds_unicode(value: object) -> bool:
    """Tell whether a text, or each text of a list or an object, is valid Unicode; what is no text is."""
    pending = [value]
    while pending:  # no recursion: JSON may be nested as deeply as the parser allows
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, str) and not is_unicode(value):
            return False
    return True
