"""The run of `bert-prepare`: blocks to worker processes, resumed where a killed run stopped.

OUT/.prepare/plan.json           settings that decide the content of the shards; a run with others is refused
OUT/.prepare/00000.json          written once the shards of block 0 are in place
OUT/.prepare/part-2-of-4.json    written last by a run of a part
OUT/corpus.json                  written last by a run of all blocks, or by the merge of the parts
"""

import fcntl
import hashlib
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bert.errors import ConfigError, DataError, TrainingError
from bert.files import file_sha256
from bert.tokenizer import Tokenizer
from training.corpus.documents import (
    BEGINNING,
    Block,
    BlockStart,
    is_chosen,
    read_blocks,
    read_documents,
    text_of,
)
from training.corpus.prepare_progress import PrepareProgress, usable_cores
from training.corpus.records import finished_blocks, keep_plan, merged_blocks, part_file, part_record
from training.corpus.settings import PrepareSettings
from training.corpus.shards import SPLITS, write_index, write_json
from training.corpus.text_files import TextFile, list_files
from training.corpus.vocabulary import trained_tokenizer
from training.corpus.worker import LOG_FOLDER, Note, start_worker, token_bytes, write_block
from training.engine.progress import stage
from training.engine.signals import deaf_children

WAITING_BLOCKS = 1
"""Blocks to read ahead of the workers, so that none waits for the disk."""


def prepare(settings: PrepareSettings) -> PrepareProgress:
    """Write the missing shards, then the index or the record of a part; return the counts.

    Raises DataError for unreadable sources, ConfigError for a folder begun with other settings or parts that cannot be
    merged, and TrainingError where a worker process died.
    """
    files = list_files(settings.sources, besides=settings.output_dir)
    with locked(settings.output_dir, settings.part):
        return _prepare(settings, files)


def _prepare(settings: PrepareSettings, files: tuple[TextFile, ...]) -> PrepareProgress:
    folder, plan = settings.output_dir, make_plan(settings, files)
    merged = merged_blocks(folder, plan) if settings.merge else None
    if not settings.part:  # other parts may be at work
        for left in [*folder.glob("*.partial"), *(folder / LOG_FOLDER).glob("*.partial")]:
            left.unlink(missing_ok=True)
    keep_plan(folder, plan)
    progress = PrepareProgress(sum(file.size for file in files))
    tokenizer = find_tokenizer(settings, files, progress)
    if not settings.vocab_only:
        settings.segmenter(tokenizer)  # refuses one that does not fit, before any work
        notes, end = merged or write_blocks(settings, files, token_bytes(tokenizer), progress)
        if settings.part:
            write_json(part_file(folder, settings.part), part_record(folder, settings.part, plan, end))
        else:
            write_index(folder, describe(settings, files, tokenizer, notes))
    return progress


@contextmanager
def locked(folder: Path, part: str | None = None) -> Iterator[None]:
    """Make an output folder and lock it, or a part of it. Raises ConfigError where another run holds the lock."""
    (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
    lock = part_file(folder, part).with_suffix(".lock") if part else folder / LOG_FOLDER / "lock"
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)  # NFS locks only what may be written
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process ends
        yield
    except BlockingIOError:
        raise ConfigError(f"another bert-prepare is at work in {folder}") from None
    finally:
        os.close(handle)


def make_plan(settings: PrepareSettings, files: tuple[TextFile, ...]) -> dict[str, Any]:
    """Return everything that decides the content of the shards; the number of processes does not."""
    free = {"config", "output_dir", "processes", "sources", "vocab_only", "on_error", "part", "merge"}
    of_training = {"vocab_size", "uncased", "vocab_share", "model_type", "tokenizer"}
    plan = settings.model_dump(mode="json", exclude=free | of_training)
    if settings.tokenizer is None:
        plan |= {"vocab_size": settings.pieces, "uncased": settings.lowercases}
        plan |= {"vocab_share": settings.vocab_share, "model_type": settings.model_type}
    plan["tokenizer"] = _tokenizer_sha256(settings.tokenizer)
    plan["sources"] = [_source(file) for file in files]
    return plan


def _source(file: TextFile) -> dict[str, Any]:
    """Return what distinguishes a file from others; a data set of the hub has no size."""
    source = {"path": file.path, "bytes": file.size, "column": file.source.column}
    if file.format == "hub":
        asked = file.source
        source |= {"split": asked.hub_split, "config": asked.hub_config, "revision": asked.hub_revision}
    return source


def _tokenizer_sha256(path: Path | None) -> str | None:
    """Hash a tokenizer as this project saves it, whatever its file; None where one will be trained."""
    if path is None:
        return None
    return hashlib.sha256(Tokenizer.load(path).to_json().encode()).hexdigest()


def find_tokenizer(
    settings: PrepareSettings, files: tuple[TextFile, ...], progress: PrepareProgress
) -> Tokenizer:
    """Return the tokenizer of the output folder; the first run copies or trains it."""
    folder = settings.output_dir
    kept = folder / "tokenizer.json"
    if not kept.is_file():
        if settings.tokenizer is not None:
            tokenizer = Tokenizer.load(settings.tokenizer)
        elif settings.part:
            raise ConfigError(f"{kept} is missing, which all parts share: --vocab-only trains it before them")
        else:
            with stage("training the vocabulary"), progress.vocabulary():
                tokenizer = trained_tokenizer(settings, lambda: vocabulary_texts(settings, files))
        tokenizer.save(folder)
    return Tokenizer.load(kept)


def vocabulary_texts(settings: PrepareSettings, files: tuple[TextFile, ...]) -> Iterator[str]:
    """Yield the texts for the vocabulary: a share of all documents that are not held out."""
    for record, after, _ in read_documents(files, limit=settings.max_documents):
        number, file = after.document - 1, files[record.file]
        if is_chosen(settings.seed, number, settings.held_out):
            continue
        if not is_chosen(settings.seed + 1, number, settings.vocab_share):
            continue
        try:
            yield text_of(file, record.data)
        except ValueError as error:
            if settings.on_error == "stop":
                raise DataError(file.path, record.line, str(error)) from None


def write_blocks(
    settings: PrepareSettings, files: tuple[TextFile, ...], id_bytes: int, progress: PrepareProgress
) -> tuple[list[Note], BlockStart]:
    """Give every unfinished block, of a part's own, to a worker; return their notes in order, and the end of the text."""
    index, parts = settings.share
    notes = finished_blocks(settings.output_dir, id_bytes, index, parts)
    for note in notes.values():
        progress.count(note)
    if notes:
        progress.say(f"{len(notes)} blocks are finished already")
    start, block = BEGINNING, index
    while block in notes:
        start, block = BlockStart(*notes[block]["end"]), block + parts
    progress.begin(sum(file.size for file in files[: start.file]))
    end = start

    def missing() -> Iterator[Block]:
        nonlocal end
        for block in read_blocks(files, int(settings.shard_mb * 1e6), start, settings.max_documents):
            end = block.end
            if block.start.block % parts == index and block.start.block not in notes:
                yield block

    with closing(_written(missing(), settings, files)) as written:
        for number, note, bytes_read in written:
            notes[number] = note
            progress.block(note, bytes_read)
    return [notes[block] for block in sorted(notes)], end


def _written(
    blocks: Iterator[Block], settings: PrepareSettings, files: tuple[TextFile, ...]
) -> Generator[tuple[int, Note, int], None, None]:
    """Yield number, note and bytes read of each block as workers finish.

    Memory holds a block for each worker, and one waiting.
    """
    processes = settings.processes or usable_cores()
    pending: set[Future[tuple[int, Note, int]]] = set()
    with _workers(settings, files, processes) as pool:
        for block in blocks:
            # One that is still importing would show a traceback at Ctrl-C.
            with deaf_children(signal.SIGINT):
                pending.add(pool.submit(write_block, block))
            del block  # the last block's texts would stay in memory while we wait
            if len(pending) >= processes + WAITING_BLOCKS:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        for each in as_completed(pending):
            yield each.result()


@contextmanager
def _workers(
    settings: PrepareSettings, files: tuple[TextFile, ...], processes: int
) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes afresh (spawn), which is safe beside the threads of `tokenizers`."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, start_worker, (settings, files))
    try:
        yield pool
    except BrokenProcessPool:
        raise TrainingError(
            "a worker process died, perhaps for want of memory: fewer processes or a smaller shard_mb need less; "
            "the same command goes on from here"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def describe(
    settings: PrepareSettings, files: tuple[TextFile, ...], tokenizer: Tokenizer, notes: list[Note]
) -> dict[str, Any]:
    """Return the content of corpus.json, without the totals."""
    return {
        "seed": settings.seed,
        "tokenizer": {
            "sha256": file_sha256(settings.output_dir / "tokenizer.json"),
            "vocab_size": tokenizer.highest_id() + 1,
            "uncased": tokenizer.lowercases,
        },
        "token_bytes": token_bytes(tokenizer),
        "language": settings.language,
        "word_segmenter": settings.segmenter(tokenizer),
        "line_breaks": settings.line_breaks,
        "held_out": settings.held_out,
        "sources": [{"path": file.path, "format": file.format, "bytes": file.size} for file in files],
        "splits": {split: [note[split] for note in notes if note[split]] for split in SPLITS},
        "left_out": {reason: sum(note[reason] for note in notes) for reason in ("empty", "broken")},
    }
