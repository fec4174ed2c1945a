"""The floor.

The same texts through the same engine, called directly, without HTTP and without a scheduler.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bert.bundle import read_bundle
from bert.tokenizer import Encoding, Tokenizer
from service.engine import OnnxEngine, share_memory_arena

Batches = list[list[Encoding]]


def measure(folder: Path, texts: Sequence[str], cores: int, seconds: float) -> dict[str, float]:
    """Return texts a second, tokenising included: one by one, sorted in eights, and packed on every core."""
    share_memory_arena()
    bundle = read_bundle(folder)
    tokenizer = Tokenizer.load(bundle.tokenizer_path)
    limit = bundle.manifest.task.max_tokens
    wide = OnnxEngine(bundle, cores)
    results = {
        f"one by one, {cores} threads": _rate(wide, tokenizer, texts, 1, seconds, limit),
        f"sorted in eights, {cores} threads": _rate(wide, tokenizer, texts, 8, seconds, limit),
    }
    del wide
    narrow = OnnxEngine(bundle, 1)
    with ThreadPoolExecutor(cores) as pool:
        parts = [texts[core::cores] for core in range(cores)]
        for size in (1, 8):
            rates = pool.map(
                lambda part, size=size: _rate(narrow, tokenizer, part, size, seconds, limit), parts
            )
            name = "one by one" if size == 1 else "sorted in eights"
            results[f"{name}, {cores} loops of 1 thread"] = sum(rates)
    return results


def _rate(
    engine: OnnxEngine, tokenizer: Tokenizer, texts: Sequence[str], size: int, seconds: float, limit: int
) -> float:
    clock = time.perf_counter
    batches = list(_batches(texts, size))
    engine.run(_encode(tokenizer, batches[0], limit))
    done, start = 0, clock()
    while clock() - start < seconds:
        for batch in batches:
            engine.run(_encode(tokenizer, batch, limit))
            done += len(batch)
            if clock() - start >= seconds:
                break
    return done / (clock() - start)


def _batches(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    """Cut the texts.

    Those of more than one are sorted by length in blocks of 64, as a batching server would.
    """
    for block in range(0, len(texts), 64):
        inside = list(texts[block : block + 64])
        if size > 1:
            inside.sort(key=len)
        yield from (inside[at : at + size] for at in range(0, len(inside), size))


def _encode(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> list[Encoding]:
    return [tokenizer.single(pieces, limit, truncate=True) for pieces in tokenizer.pieces(texts)]
