"""Raw text, a document at a time: json lines, parquet, plain text, data sets of the hub; never a whole file in memory.

A reader yields undecoded bytes with their place; `text_of` decodes them in another process. Documents come in blocks of a
fixed size, whatever the number of processes: block n becomes shard n.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert.data.files import NOT_UNICODE, holds_unicode, opened
from bert.errors import DataError
from training.corpus.object_store import open_source
from training.corpus.open_dataset import open_dataset
from training.corpus.text_files import TextFile

BOM = b"\xef\xbb\xbf"
MAX_DOCUMENT_BYTES = 4_000_000
"""Size past which a plain-text document is cut at the next line: a file without blank lines is no single text."""


class Record(NamedTuple):
    """One stored document, undecoded."""

    line: int
    """Its first line (parquet, hub: its row), counted from 1."""
    data: bytes
    share: float = 0.0
    """Part of the file that was read by then, 0 to 1."""


class BlockStart(NamedTuple):
    """Start of a block: its number, its first document, the records before it in its file, and a digest of all before it."""

    block: int = 0
    document: int = 0
    file: int = 0
    records: int = 0
    digest: str = ""


BEGINNING = BlockStart()


class StoredDocument(NamedTuple):
    """A stored document and its place: index of the file, and line."""

    file: int
    line: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """Documents of one shard, for one worker."""

    start: BlockStart
    end: BlockStart
    records: list[StoredDocument]
    bytes_read: int
    """Bytes of all files read up to its end, as they lie on disk: compressed where the files are."""


def read_blocks(
    files: Sequence[TextFile], block_bytes: int, start: BlockStart = BEGINNING, max_documents: int = 0
) -> Iterator[Block]:
    """Cut the documents of all files into blocks of `block_bytes`; a document is never cut.

    Begin at `start`, the end of a block of an earlier run. `max_documents` 0 reads all.
    """
    end, records, size, bytes_read = start, list[StoredDocument](), 0, 0
    digest = hashlib.sha256(start.digest.encode())
    for record, end, bytes_read in read_documents(files, start, max_documents):
        records.append(record)
        size += len(record.data)
        digest.update(b"%d %d\n" % (record.file, len(record.data)))
        digest.update(record.data)
        if size >= block_bytes:
            end = end._replace(block=start.block + 1, digest=digest.hexdigest())
            yield Block(start, end, records, bytes_read)
            start, records, size, digest = end, [], 0, hashlib.sha256(end.digest.encode())
    if records:
        end = end._replace(block=start.block + 1, digest=digest.hexdigest())
        yield Block(start, end, records, bytes_read)


def read_documents(
    files: Sequence[TextFile], start: BlockStart = BEGINNING, limit: int = 0
) -> Iterator[tuple[StoredDocument, BlockStart, int]]:
    """Yield each document from `start` on, the place after it, and the bytes read; a `limit` of 0 reads all."""
    number, before = start.document, sum(file.size for file in files[: start.file])
    for index in range(start.file, len(files)):
        skipped = start.records if index == start.file else 0
        for place, record in enumerate(read_records(files[index], skipped), skipped + 1):
            if limit and number >= limit:
                return
            number += 1
            after = BlockStart(start.block, number, index, place)
            read = before + int(record.share * files[index].size)
            yield StoredDocument(index, record.line, record.data), after, read
        before += files[index].size


def is_chosen(seed: int, document: int, share: float) -> bool:
    """Choose a `share` of all documents by a hash of their numbers: neither order nor count matters."""
    digest = hashlib.blake2b(f"{seed}:{document}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def text_of(file: TextFile, data: bytes) -> str:
    """Decode a record; an empty text is no document. Raises ValueError with the reason."""
    if file.format == "jsonl":
        return _json_text(data, file.source.column)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte 0x{error.object[error.start]:02x})") from None


def read_records(file: TextFile, skip: int = 0) -> Iterator[Record]:
    """Yield the records of a file after the first `skip`. Raises DataError for a file that is missing or damaged."""
    if file.format == "hub":
        return _hub(file, skip)
    if file.format == "parquet":
        return _parquet(file, skip)
    return islice(_from_lines(file), skip, None)


def _from_lines(file: TextFile) -> Iterator[Record]:
    found = _json_lines if file.format == "jsonl" else _plain
    try:
        with opened(file.path, open_source(file.path)) as (stream, raw):
            for line, data in found(stream):
                # Arrow closes a file that it has read to its end.
                yield Record(line, data, 1.0 if raw.closed else raw.tell() / max(1, file.size))
    except OSError as error:
        raise DataError(file.path, None, f"cannot be read: {error}") from None


def _json_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for line, data in enumerate(lines, 1):
        if not data.isspace():
            yield line, data.removeprefix(BOM) if line == 1 else data


def _plain(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    gathered: list[bytes] = []
    size = first = 0
    for line, data in enumerate(lines, 1):
        if gathered and (data.isspace() or size >= MAX_DOCUMENT_BYTES):
            yield first, b"".join(gathered)
            gathered, size = [], 0
        if not data.isspace():
            first = first if gathered else line
            gathered.append(data)
            size += len(data)
    if gathered:
        yield first, b"".join(gathered)


def _parquet(file: TextFile, skip: int) -> Iterator[Record]:
    try:
        with open_source(file.path) as raw, pq.ParquetFile(raw) as table:
            _check_column(file, table.schema_arrow)
            row, rows = 0, table.metadata.num_rows
            for batch in table.iter_batches(batch_size=256, columns=[file.source.column]):
                if row + len(batch) > skip:
                    for place, text in enumerate(batch.column(0).to_pylist(), row + 1):
                        if place > skip:
                            yield Record(place, (text or "").encode(), row / rows)
                row += len(batch)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(file.path, None, f"cannot be read as parquet: {error}") from None


def _check_column(file: TextFile, schema: pa.Schema) -> None:
    column = file.source.column
    if column not in schema.names:
        have = ", ".join(map(repr, schema.names))
        raise DataError(file.path, None, f"has no column {column!r}; its columns are {have}")
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(file.path, None, f"column {column!r} holds {kind}, which is not text")


def _hub(file: TextFile, skip: int) -> Iterator[Record]:
    rows = open_dataset(
        file.path,
        file.source.hub_split,
        file.source.hub_config,
        file.source.hub_revision,
        source=file.path,
        streaming=True,
    )
    column = file.source.column
    for row, content in enumerate(rows.skip(skip), skip + 1):
        if column not in content:
            have = ", ".join(map(repr, content))
            raise DataError(file.path, row, f"has no column {column!r}; its columns are {have}")
        text = content[column]
        if not isinstance(text, str | None):
            raise DataError(file.path, row, f"{column!r} is {str(text)[:60]!r}, which is not text")
        yield Record(row, (text or "").encode("utf-8", "surrogatepass"))


def _json_text(data: bytes, column: str) -> str:
    """Return the text of a json line; null is an empty one. Raises ValueError with the reason."""
    try:
        row = json.loads(data)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not json: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("is json that is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
    if not isinstance(row, dict):
        raise ValueError(f"is {str(row)[:60]!r} instead of an object")
    if column not in row:
        raise ValueError(f"has no field {column!r}; its fields are {', '.join(map(repr, row)) or 'none'}")
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise ValueError(f"{column!r} is {str(text)[:60]!r}, which is not text")
    if not holds_unicode(text):
        raise ValueError(f"{column!r} {NOT_UNICODE}")
    return text
