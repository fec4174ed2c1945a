"""Documents in blocks of a fixed size, whatever the number of processes: block n becomes shard n."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from training.corpus.readers import read_records
from training.corpus.text_files import TextFile


class BlockStart(NamedTuple):
    """Start of a block: its number, its first document, and the records before it in its file."""

    block: int = 0
    document: int = 0
    file: int = 0
    records: int = 0


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
    for record, end, bytes_read in read_documents(files, start, max_documents):
        records.append(record)
        size += len(record.data)
        if size >= block_bytes:
            end = end._replace(block=start.block + 1)
            yield Block(start, end, records, bytes_read)
            start, records, size = end, [], 0
    if records:
        yield Block(start, end._replace(block=start.block + 1), records, bytes_read)


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
