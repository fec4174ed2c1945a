"""Files that may be compressed: .gz, .xz, .bz2 and .zst behind the ending that names the format."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

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
def opened(path: str | Path) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """Open a file: what is in it, decompressed, and the raw file below. Damage that is met while reading is an OSError."""
    try:
        with open(path, "rb") as raw, closing(_decompressed(raw, Path(path).suffix.lower())) as stream:
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
