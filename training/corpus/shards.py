"""Prepared text on disk: flat files of token ids beside the borders of sentences and documents.

    corpus.json             settings of the preparation, and every shard with its hashes
    tokenizer.json          tokenizer of the ids
    NAME.tokens             uint16, or uint32 for a vocabulary over 65,536: the ids of all documents, no special tokens
    NAME.continues          uint8 for each token: 1 where it goes on with the word of the token before
    NAME.sentences          uint32 (S + 1): the first token of each sentence, and the end
    NAME.documents          uint32 (D + 1): the first sentence of each document, and the end

Little endian. D documents, S sentences, T tokens. Shards are memory-mapped: opening a corpus reads no text.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.errors import DataError
from bert.files import atomic_file, atomic_write, file_sha256

SCHEMA_VERSION = 1
SPLITS = ("train", "held_out")
PARTS = ("tokens", "continues", "sentences", "documents")
INDEX = "corpus.json"
_OFFSETS = np.dtype("<u4")
Entry = Mapping[str, Any]
"""Entry of a shard in corpus.json."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """The tokens of one document, without special tokens."""

    tokens: NDArray[np.int32]
    """(T,) ids."""
    continues: NDArray[np.bool_]
    """(T,) True where a token continues the word of the token before."""
    sentences: NDArray[np.int32]
    """(S + 1,) first token of each sentence, and T."""


class Shard:
    """Memory-mapped files of one shard; cheap to open and safe to share between threads."""

    def __init__(self, folder: Path, entry: Entry, token_bytes: int) -> None:
        """Map the files of an entry of corpus.json; raises DataError where one is missing or of another size."""
        self.name: str = entry["name"]
        self.documents, self.sentences, self.tokens = (
            int(entry[count]) for count in ("documents", "sentences", "tokens")
        )
        lengths = (self.tokens, self.tokens, self.sentences + 1, self.documents + 1)
        files = (folder / f"{self.name}.{part}" for part in PARTS)
        maps = [_map(*each) for each in zip(files, _types(token_bytes), lengths, strict=True)]
        self._tokens, self._continues, self._sentences, self._documents = maps

    def __len__(self) -> int:
        return self.documents

    def document(self, index: int) -> Document:
        """Copy one document out of the files; raises IndexError outside 0 … documents - 1."""
        if not 0 <= index < self.documents:
            raise IndexError(f"document {index} of {self.name}, which has {self.documents}")
        first, last = (int(border) for border in self._documents[index : index + 2])
        borders = self._sentences[first : last + 1].astype(np.int64)
        start, stop = int(borders[0]), int(borders[-1])
        return Document(
            self._tokens[start:stop].astype(np.int32),
            self._continues[start:stop].astype(np.bool_),
            (borders - start).astype(np.int32),
        )

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """Count how often each id occurs (V,)."""
        return np.bincount(self._tokens, minlength=vocab_size)


class Corpus:
    """A prepared folder: the content of corpus.json, and the shards."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        """Keep the content of corpus.json; `Corpus.open` reads and checks it."""
        self.folder, self.info = folder, info

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """Read corpus.json; raises DataError where it is missing, unfinished or of another schema."""
        file = folder / INDEX
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(file, None, "is missing: bert-prepare has not finished here") from None
        except (OSError, ValueError) as error:
            raise DataError(file, None, f"cannot be read: {error}") from None
        found = info.get("schema_version") if isinstance(info, dict) else None
        if found != SCHEMA_VERSION:
            raise DataError(file, None, f"has schema_version {found!r}; this version reads {SCHEMA_VERSION}")
        known, tokenizer = info.get("tokenizer", {}).get("sha256"), folder / "tokenizer.json"
        if known and (not tokenizer.is_file() or file_sha256(tokenizer) != known):
            raise DataError(tokenizer, None, f"is not the one that made the ids, as {INDEX} says")
        return cls(folder, info)

    def shards(self, split: str) -> list[Shard]:
        """Map the shards of "train" or "held_out"; raises DataError for damaged files or another split."""
        return [self.shard(entry) for entry in self.entries(split)]

    def entries(self, split: str) -> list[Entry]:
        """Return the entries of a split's shards; raises DataError for another split."""
        if split not in self.info["splits"]:
            raise DataError(
                self.folder, None, f"has no split {split!r}, only {', '.join(self.info['splits'])}"
            )
        entries: list[Entry] = self.info["splits"][split]["shards"]
        return entries

    def shard(self, entry: Entry) -> Shard:
        """Map the files of a shard; raises DataError where one is missing or of another size."""
        return Shard(self.folder, entry, self.token_bytes)

    def token_counts(self, split: str) -> NDArray[np.int64]:
        """Count how often each id occurs in a split (V,). Memory holds the ids of a shard."""
        found = (self.shard(entry).counts(self.vocab_size) for entry in self.entries(split))
        return sum(found, start=np.zeros(self.vocab_size, np.int64))

    @cached_property
    def vocab_size(self) -> int:
        """Number of pieces in the vocabulary; every id is below it."""
        return int(self.info["tokenizer"]["vocab_size"])

    @cached_property
    def part_types(self) -> dict[str, np.dtype[Any]]:
        """Type of the values in each of PARTS."""
        return dict(zip(PARTS, _types(self.token_bytes), strict=True))

    @property
    def token_bytes(self) -> int:
        """Bytes of an id on disk: 2 or 4."""
        return int(self.info["token_bytes"])


def _types(token_bytes: int) -> tuple[np.dtype[Any], ...]:
    """Return the type of each of PARTS on disk; raises ValueError for ids of a size other than 2 and 4."""
    if token_bytes not in (2, 4):
        raise ValueError(f"token_bytes ({token_bytes}) must be 2 or 4")
    return np.dtype(f"<u{token_bytes}"), np.dtype("u1"), _OFFSETS, _OFFSETS


def write_shard(folder: Path, name: str, documents: Iterable[Document], token_bytes: int) -> dict[str, Any]:
    """Write a shard atomically, document by document; return its entry for corpus.json.

    Memory holds one document and the borders. A run that dies leaves only files that end in .partial. Raises ValueError
    for a document whose parts do not fit together.
    """
    types = dict(zip(PARTS, _types(token_bytes), strict=True))
    hashes = {part: hashlib.sha256() for part in PARTS}
    counts = {"documents": 0, "sentences": 0, "tokens": 0}
    with ExitStack() as stack:
        streams = {part: stack.enter_context(atomic_file(folder / f"{name}.{part}")) for part in PARTS}

        def write(**values: NDArray[Any]) -> None:
            for part, array in values.items():
                raw = array.astype(types[part]).tobytes()
                streams[part].write(raw)
                hashes[part].update(raw)

        write(sentences=np.zeros(1), documents=np.zeros(1))
        for document in documents:
            _check(document, types["tokens"])
            borders = document.sentences[1:].astype(np.int64) + counts["tokens"]
            counts["documents"] += 1
            counts["sentences"] += len(borders)
            counts["tokens"] += len(document.tokens)
            if counts["tokens"] > np.iinfo(_OFFSETS).max:
                raise ValueError(f"shard {name} would have over {np.iinfo(_OFFSETS).max} tokens")
            write(tokens=document.tokens, continues=document.continues, sentences=borders)
            write(documents=np.array([counts["sentences"]]))
    return {"name": name, **counts, "sha256": {part: hashes[part].hexdigest() for part in PARTS}}


def _check(document: Document, ids: np.dtype[Any]) -> None:
    """Raise ValueError for a document whose parts do not fit together, or whose ids do not fit in their type."""
    borders, tokens = document.sentences, len(document.tokens)
    if len(borders) < 1 or borders[0] != 0 or borders[-1] != tokens or len(document.continues) != tokens:
        raise ValueError(
            f"a document of {tokens} tokens has {len(document.continues)} flags and borders {borders}"
        )
    if tokens and int(document.tokens.max()) > np.iinfo(ids).max:
        raise ValueError(f"id {document.tokens.max()} does not fit in {ids.itemsize} bytes")


def write_index(folder: Path, info: Mapping[str, Any]) -> None:
    """Write corpus.json, adding the schema version and each split's totals. Its `splits` map to lists of entries."""
    counts = ("documents", "sentences", "tokens")
    splits = {
        split: {
            **{count: sum(entry[count] for entry in entries) for count in counts},
            "shards": list(entries),
        }
        for split, entries in info["splits"].items()
    }
    write_json(folder / INDEX, {"schema_version": SCHEMA_VERSION, **info, "splits": splits})


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a json file atomically."""
    atomic_write(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _map(file: Path, kind: np.dtype[Any], length: int) -> NDArray[Any]:
    """Map a file of `length` values; raises DataError where it is missing or of another size."""
    try:
        found = file.stat().st_size
    except OSError as error:
        raise DataError(file, None, f"cannot be read: {error.strerror}") from None
    if found != length * kind.itemsize:
        raise DataError(file, None, f"has {found} bytes instead of {length * kind.itemsize}")
    if not length:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    return np.memmap(file, kind, "r", shape=(length,))
