"""Text files as users have them, and what is wrong in them.

They are UTF-8, with or without a byte order mark, with any line ending. They may be compressed: .gz, .xz, .bz2 and .zst
behind the ending that names the format.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from bert.encoding import is_unicode
from bert.errors import DataError

COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
_MAGIC = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
"""The first bytes of each format, in the order of COMPRESSED."""


def ending(path: str | Path) -> str:
    """Return the ending that names the format, in small letters: .jsonl of A.JSONL.xz."""
    return _decompressed_name(path).suffix.lower()


def stem(path: str | Path) -> str:
    """Return the name without its endings: A of A.JSONL.xz."""
    return _decompressed_name(path).stem


def ending_of_content(content: bytes) -> str | None:
    """Return the ending that compressed content should have, None for anything else."""
    return next(
        (end for end, magic in zip(COMPRESSED, _MAGIC, strict=True) if content.startswith(magic)), None
    )


def _decompressed_name(path: str | Path) -> Path:
    path = Path(path)
    return Path(path.stem if path.suffix.lower() in COMPRESSED else path.name)


@contextmanager
def opened(path: str | Path, raw: BinaryIO | None = None) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """Open a file, or take it as `raw`: its content, decompressed, and the raw file. Damage met in reading is an OSError."""
    try:
        with raw or open(path, "rb") as raw, closing(_decompressed(raw, Path(path).suffix.lower())) as stream:
            yield stream, raw
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise OSError(str(error)) from error


def _decompressed(raw: BinaryIO, suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if suffix == ".xz":
        return lzma.LZMAFile(raw)
    if suffix == ".bz2":
        return bz2.BZ2File(raw)
    if suffix == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(raw, "zstd"), 1 << 20))
    return raw


NOT_UNICODE = "is not valid Unicode: it has half of a surrogate pair"
MAX_SHOWN = 20
Place = int | str
"""A line counted from 1, or what stands for one where a format has none: "row 3"."""


class Problems:
    """The problems of one file, in the order found; `raise_if_any` turns them into one DataError."""

    def __init__(self, path: str | Path) -> None:
        """Start with no problems for the file at `path`."""
        self.path = path
        self._found: list[tuple[Place | None, str]] = []
        self.advice = ""
        """Advice, shown once after the last problem."""

    def __len__(self) -> int:
        """Count all problems, also those past the twenty that are kept word for word."""
        return len(self._found)

    @property
    def first(self) -> tuple[Place | None, str] | None:
        """The place and the reason of the first problem."""
        return self._found[0] if self._found else None

    def add(self, place: Place | None, reason: str) -> None:
        """Note one problem; None where it has no place."""
        self._found.append((place, reason))

    def raise_if_any(self) -> None:
        """Raise DataError with the first twenty problems, or returns when there are none."""
        if not self._found:
            return
        first, reason = self._found[0]
        line = first if isinstance(first, int) else None
        if len(self._found) == 1:
            reason = reason if line else _with_place(first, reason)
            raise DataError(self.path, line, "; ".join(filter(None, (reason, self.advice))))
        shown = [_with_place(place, reason) for place, reason in self._found[:MAX_SHOWN]]
        left = len(self._found) - len(shown)
        if left:
            shown.append(f"and {left} more")
        if self.advice:
            shown.append(self.advice)
        reason = f"{len(self._found)} problems:\n  " + "\n  ".join(shown)
        raise DataError(self.path, line, reason)


def _with_place(place: Place | None, reason: str) -> str:
    if place is None:
        return reason
    return f"line {place}: {reason}" if isinstance(place, int) else f"{place}: {reason}"


def read_text(path: str | Path) -> str:
    """Return the whole file as text, decompressed.

    Raises DataError with the line when the file is not UTF-8, and without one when it cannot be read or is
    empty.
    """
    try:
        with opened(path) as (stream, _):
            raw = stream.read()
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if end := ending_of_content(raw):
            name = Path(path).name
            twice = name.lower().endswith(end)
            reason = "is compressed twice" if twice else f"is compressed; name it {name}{end}"
            raise DataError(path, None, reason) from error
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
        with opened(path) as (stream, _):
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


def json_lines(path: str | Path, problems: Problems) -> Iterator[tuple[int, Any]]:
    """Yield line and value of each line that is not blank; those that are not JSON go to `problems`."""
    for line, text in enumerate(read_lines(path), 1):
        if text.strip():
            try:
                yield line, parse_json(text, path, line)
            except DataError as error:
                problems.add(line, error.reason)


def holds_unicode(value: object) -> bool:
    """Tell whether a text, or each text of a list or an object, is valid Unicode; anything else is."""
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
