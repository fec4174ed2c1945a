"""Which requests were in the engine when its process died: a small file that outlives it.

A request that was there several times is taken for the cause.
"""

import json
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

MOST_CRASHES = 3
"""A request that was in the engine at so many deaths is not run again."""
PLACES = 256
"""Batches that run at once; more are not noted."""
MOST_KEYS = 510
"""Requests of a batch; further ones are not noted."""
_COUNT = struct.Struct("<Q")
_PLACE_BYTES = 4096


class FileLedger:
    """Notes in a memory-mapped file: the system keeps them whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        """Open the file, empty; `crashes` first, if there was one before."""
        path.write_bytes(bytes(PLACES * _PLACE_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PLACES * _PLACE_BYTES)
        self._free = list(range(PLACES))
        self._lock = threading.Lock()

    def begin(self, keys: Sequence[int]) -> int:
        """Note the requests of a batch; returns the place, -1 if there is none."""
        with self._lock:
            place = self._free.pop() if self._free else -1
        if place >= 0:
            kept, at = keys[:MOST_KEYS], place * _PLACE_BYTES
            struct.pack_into(f"<{len(kept)}Q", self._map, at + _COUNT.size, *kept)
            _COUNT.pack_into(self._map, at, len(kept))
        return place

    def end(self, place: int) -> None:
        """Strike the note out."""
        if place >= 0:
            _COUNT.pack_into(self._map, place * _PLACE_BYTES, 0)
            with self._lock:
                self._free.append(place)


def crashes(path: Path) -> Counter[int]:
    """Return, by key, at how many deaths of an engine process a request was in the engine.

    Reads the ledger that the last process left, and adds it to the counts of those before.
    """
    counted = path.with_suffix(".counts.json")
    counts = (
        Counter({int(key): count for key, count in json.loads(counted.read_text()).items()})
        if (counted.exists())
        else Counter[int]()
    )
    if path.exists():
        counts.update(_noted(path.read_bytes()))
        aside = counted.with_suffix(".new")
        aside.write_text(json.dumps(counts))
        os.replace(aside, counted)
        path.unlink()
    return counts


def _noted(data: bytes) -> set[int]:
    found = set[int]()
    for at in range(0, len(data), _PLACE_BYTES):
        (count,) = _COUNT.unpack_from(data, at)
        found.update(struct.unpack_from(f"<{min(count, MOST_KEYS)}Q", data, at + _COUNT.size))
    return found
