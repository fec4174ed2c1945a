"""Documents in blocks of a fixed size, whatever the number of processes: block n becomes shard n."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from training.corpus.datasets import TextFile
from training.corpus.readers import DocumentReader


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


class BlockReader:
    """Cuts the documents of all files into blocks of `block_bytes`; a document is never cut."""

    def __init__(
        self,
        files: Sequence[TextFile],
        block_bytes: int,
        start: BlockStart = BEGINNING,
        max_documents: int = 0,
    ) -> None:
        """Begin at `start`, the end of a block of an earlier run. `max_documents` 0 reads all."""
        self._files, self._block_bytes, self._limit = files, block_bytes, max_documents
        self._at = start
        self._reader: DocumentReader | None = None

    def __iter__(self) -> Iterator[Block]:
        start, records, size = self._at, list[StoredDocument](), 0
        for raw in self._raw():
            records.append(raw)
            size += len(raw.data)
            if size >= self._block_bytes:
                self._at = self._at._replace(block=start.block + 1)
                yield Block(start, self._at, records)
                start, records, size = self._at, [], 0
        if records:
            yield Block(start, self._at._replace(block=start.block + 1), records)

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, as they lie on disk: compressed where the files are."""
        done = sum(file.size for file in self._files[: self._at.file])
        return done + int(self._reader.share * self._reader.file.size if self._reader else 0)

    def _raw(self) -> Iterator[StoredDocument]:
        for index in range(self._at.file, len(self._files)):
            if index != self._at.file:
                self._at = self._at._replace(file=index, records=0)
            self._reader = DocumentReader(self._files[index])
            for record in self._reader.records(self._at.records):
                if self._limit and self._at.document >= self._limit:
                    return
                self._at = self._at._replace(document=self._at.document + 1, records=self._at.records + 1)
                yield StoredDocument(index, record.line, record.data)


def is_chosen(seed: int, document: int, share: float) -> bool:
    """Choose a `share` of all documents by a hash of their numbers: neither order nor count matters."""
    digest = hashlib.blake2b(f"{seed}:{document}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
