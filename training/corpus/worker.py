"""Worker process: a block of raw documents to the shard files of both splits."""

import os
import signal
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from training.corpus.documents import Block, StoredDocument, is_chosen, text_of
from training.corpus.encoder import BATCH_CHARACTERS, SentenceEncoder
from training.corpus.sentences import split_sentences
from training.corpus.settings import PrepareSettings
from training.corpus.shards import SPLITS, Document, write_json, write_shard
from training.corpus.text_files import TextFile
from training.engine.signals import end_with_parent

Note = dict[str, Any]
"""Entries of a block's shards, counts of what was left out, and where the next block starts."""
MAX_PROBLEMS = 20
"""Most problems of a block whose messages are kept."""
LOG_FOLDER = ".prepare"
"""Folder of the notes on finished blocks."""


class BlockWriter:
    """Writer of the shards of blocks, one after the other."""

    def __init__(self, settings: PrepareSettings, files: tuple[TextFile, ...]) -> None:
        """Load the tokenizer of the output folder."""
        self._settings, self._files = settings, files
        tokenizer = Tokenizer.load(settings.output_dir)
        self._token_bytes, self._unk_id = token_bytes(tokenizer), tokenizer.unk_id
        self._encoder = SentenceEncoder(
            tokenizer,
            chinese=settings.is_chinese,
            segment_words=settings.segmenter(tokenizer) is not None,
        )

    def write(self, block: Block) -> Note:
        """Write the shards, then the note on them; return the note. Raises DataError."""
        self._empty, self._unknown, self._problems = 0, 0, list[str]()
        of_split: dict[str, list[StoredDocument]] = {split: [] for split in SPLITS}
        for number, raw in enumerate(block.records, block.start.document):
            chosen = is_chosen(self._settings.seed, number, self._settings.held_out)
            of_split["held_out" if chosen else "train"].append(raw)
        note = {
            "end": list(block.end),
            **{split: self._shard(split, block.start.block, raws) for split, raws in of_split.items()},
            "empty": self._empty,
            "unknown": self._unknown,
            "broken": len(self._problems),
            "problems": self._problems[:MAX_PROBLEMS],
        }
        write_json(self._settings.output_dir / LOG_FOLDER / f"{block.start.block:05d}.json", note)
        return note

    def _shard(self, split: str, block: int, raws: list[StoredDocument]) -> dict[str, Any] | None:
        """Write a shard and return its entry; None, and no shard, where no document has text."""
        documents = self._documents(raws)
        first = next(documents, None)
        if first is None:
            return None
        folder, name = self._settings.output_dir, f"{split}-{block:05d}"
        return write_shard(folder, name, chain([first], documents), self._token_bytes)

    def _documents(self, raws: Iterable[StoredDocument]) -> Iterator[Document]:
        batch: list[list[str]] = []
        size = 0
        for raw in raws:
            text = self._text(raw)
            if text is None:
                continue
            spaced = self._encoder.reads_spaces
            batch.append(
                split_sentences(text, self._settings.language, self._settings.line_breaks, spaced=spaced)
            )
            size += len(text)
            if size >= BATCH_CHARACTERS:
                yield from self._encoded(batch)
                batch, size = [], 0
        yield from self._encoded(batch)

    def _text(self, raw: StoredDocument) -> str | None:
        """Decode a document. An unreadable one is noted as a problem and gives None, or stops the run."""
        file = self._files[raw.file]
        try:
            return text_of(file, raw.data)
        except ValueError as error:
            problem = DataError(file.path, raw.line, str(error))
            if self._settings.on_error == "stop":
                raise problem from None
            self._problems.append(str(problem))
            return None

    def _encoded(self, texts: list[list[str]]) -> Iterator[Document]:
        """Tokenise documents, each a list of sentences, together. Those without tokens are left out."""
        sentences = [sentence for text in texts for sentence in text]
        whole = self._encoder.encode(sentences)
        if self._unk_id is not None:
            self._unknown += int(np.count_nonzero(whole.tokens == self._unk_id))
        last = 0
        for text in texts:
            first, last = last, last + len(text)
            # A sentence of nothing but invisible characters has no tokens: equal borders become one.
            borders = np.unique(whole.sentences[first : last + 1]) if text else np.zeros(1, np.int32)
            start, stop = borders[0], borders[-1]
            if start == stop:
                self._empty += 1
            else:
                yield Document(whole.tokens[start:stop], whole.continues[start:stop], borders - start)


def token_bytes(tokenizer: Tokenizer) -> int:
    """Return the bytes of an id on disk."""
    return 2 if tokenizer.highest_id() < 1 << 16 else 4


_writer: BlockWriter  # a worker process has one, made before its first block


def start_worker(settings: PrepareSettings, files: tuple[TextFile, ...]) -> None:
    """Prepare a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one decides
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already
    end_with_parent()
    global _writer
    _writer = BlockWriter(settings, files)


def write_block(block: Block) -> tuple[int, Note, int]:
    """Write one block, in the worker process; return its number, its note, and the bytes that were read up to its end."""
    return block.start.block, _writer.write(block), block.bytes_read
