"""The floor.

The same texts through the same engine, called directly, without HTTP and without a scheduler; and through a standard
export, padded, as other servers hold one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.serve.baselines.padded import PaddedClassifier
from bert.bundle import read_bundle
from bert.runtime import share_memory_arena
from bert.tasks.qa import encode
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Encoding, Tokenizer
from service.engine.onnx_engine import OnnxEngine

SORTED_BLOCK = 64
"""Texts sorted by length together before they are cut into batches, as a batching server would."""
WINDOWS = 8
"""Windows of a document in one batch."""

Item = TypeVar("Item")
Cut = TypeVar("Cut")
Document = tuple[str, str]
"""Question and context."""
Batches = Iterator[tuple[list[Cut], float]]
"""Input of each call of an engine, and how many texts or documents it finishes."""
Run = Callable[[list[Cut]], object]
"""An engine."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Result of a loop. Items are texts or documents."""

    name: str
    items_per_s: float
    batch_ms: list[float]
    """Sorted; of each call, tokenising included."""
    cpu_ms: float
    """CPU time of the process for an item."""


def measure(folder: Path, texts: Sequence[str], cores: int, seconds: float) -> dict[str, float]:
    """Return texts a second, tokenising included: one by one, sorted in eights, and packed on every core."""
    return {loop.name: loop.items_per_s for loop in text_loops(folder, texts, cores, seconds)}


def text_loops(folder: Path, texts: Sequence[str], cores: int, seconds: float) -> list[Loop]:
    """Classify one by one and sorted in eights: one loop with a thread for each core, then a loop on each core."""
    spec, tokenizer = _opened(folder)
    kinds = {
        "one by one": partial(text_batches, tokenizer, spec, size=1),
        "sorted in eights": partial(text_batches, tokenizer, spec, size=8),
    }
    return _on_all_cores(_ours(folder), kinds, texts, cores, seconds)


def padded_loops(folder: Path, texts: Sequence[str], cores: int, seconds: float) -> list[Loop]:
    """Do the same with the standard export in a folder of Hugging Face's format, each batch padded to its longest text."""
    kinds = {"one by one": partial(sorted_texts, size=1), "sorted in eights": partial(sorted_texts, size=8)}

    def opened(threads: int) -> Run[str]:
        return PaddedClassifier(folder, threads, spinning=threads > 1).padded

    return _on_all_cores(opened, kinds, texts, cores, seconds)


def document_loops(folder: Path, documents: Sequence[Document], cores: int, seconds: float) -> list[Loop]:
    """Read documents, some windows in a batch."""
    spec, tokenizer = _opened(folder)
    kinds = {f"windows in batches of {WINDOWS}": partial(document_batches, tokenizer, spec)}
    return _on_all_cores(_ours(folder), kinds, documents, cores, seconds)


def sorted_texts(texts: Sequence[str], size: int) -> Batches[str]:
    """Put texts together; those of more than one are sorted by length in blocks, as a batching server would."""
    for block in range(0, len(texts), SORTED_BLOCK):
        inside = list(texts[block : block + SORTED_BLOCK])
        if size > 1:
            inside.sort(key=len)
        for at in range(0, len(inside), size):
            batch = inside[at : at + size]
            yield batch, len(batch)


def text_batches(tokenizer: Tokenizer, spec: TaskSpec, texts: Sequence[str], size: int) -> Batches[Encoding]:
    """Cut the texts of `sorted_texts`."""
    for batch, count in sorted_texts(texts, size):
        pieces = tokenizer.pieces(batch)
        yield [tokenizer.single(p, spec.max_tokens, truncate=True) for p in pieces], count


def document_batches(
    tokenizer: Tokenizer, spec: TaskSpec, documents: Sequence[Document]
) -> Batches[Encoding]:
    """Cut the documents into windows, and those into batches."""
    for question, context in documents:
        asked, read = tokenizer.pieces([question, context])
        windows = [window.encoding for window in encode(tokenizer, asked, read, spec)]
        for at in range(0, len(windows), WINDOWS):
            batch = windows[at : at + WINDOWS]
            yield batch, len(batch) / len(windows)


def _opened(folder: Path) -> tuple[TaskSpec, Tokenizer]:
    share_memory_arena()
    bundle = read_bundle(folder)
    return bundle.manifest.task, Tokenizer.load(bundle.tokenizer_path)


def _ours(folder: Path) -> Callable[[int], Run[Encoding]]:
    return lambda threads: OnnxEngine(read_bundle(folder), threads).run


def _on_all_cores(
    opened: Callable[[int], Run[Cut]],
    kinds: Mapping[str, Callable[[Sequence[Item]], Batches[Cut]]],
    items: Sequence[Item],
    cores: int,
    seconds: float,
) -> list[Loop]:
    parts = [items[core::cores] for core in range(cores)]
    loops = list[Loop]()
    for threads, shares, shape in (
        (cores, [items], f"{cores} threads"),
        (1, parts, f"{cores} loops of 1 thread"),
    ):
        run = opened(threads)
        loops += [_loop(run, f"{kind}, {shape}", make, shares, seconds) for kind, make in kinds.items()]
    return loops


def _loop(
    run: Run[Cut],
    name: str,
    make: Callable[[Sequence[Item]], Batches[Cut]],
    parts: Sequence[Sequence[Item]],
    seconds: float,
) -> Loop:
    """Run each part round and round on a thread of its own."""
    run(next(make(parts[0]))[0])
    cpu, start = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(len(parts)) as pool:
        runs = list(pool.map(lambda part: _looped(run, make, part, start + seconds), parts))
    took, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    done = sum(items for items, _ in runs)
    return Loop(name, done / took, sorted(ms for _, times in runs for ms in times), 1000 * cpu_s / done)


def _looped(
    run: Run[Cut], make: Callable[[Sequence[Item]], Batches[Cut]], part: Sequence[Item], until: float
) -> tuple[float, list[float]]:
    """Return the items done and the milliseconds of each call."""
    done, times, began = 0.0, list[float](), time.perf_counter()
    while True:
        for batch, items in make(part):
            run(batch)
            now = time.perf_counter()
            times.append(1000 * (now - began))
            done += items
            if now >= until:
                return done, times
            began = now
