"""Batches for which there is no memory run again: alone, and in halves."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bert.errors import OutOfMemoryError
from bert.tokenizer import Encoding
from service.engine.models import Engine, Outputs
from service.logs import LOGGER
from service.system import total_memory

LOG_EVERY_S = 60.0
NO_MEMORY = (OutOfMemoryError, MemoryError)
"""Errors of a batch that got no memory: of the graph, and of what is around it."""


class LowMemory:
    """Runs batches beside one another, and those that got no memory with nothing beside them."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        """`count` is called with the name of the model of each batch that got no memory."""
        self._count, self._logged_at = count, -LOG_EVERY_S
        self._turn = threading.Lock()
        """Held by a batch that runs alone, or is about to."""
        self._running, self._is_idle = 0, threading.Condition()

    def run(self, name: str, engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        """Run a batch of a model. Raises OutOfMemoryError if a text gets no memory alone; else what the engine raises."""
        try:
            with self._beside_others():
                return engine.run(encodings)
        except NO_MEMORY:
            self._note(name, sum(map(len, encodings)))
        with self._alone():
            return run_in_parts(engine, encodings)

    @contextmanager
    def _beside_others(self) -> Iterator[None]:
        with self._turn, self._is_idle:
            self._running += 1
        try:
            yield
        finally:
            with self._is_idle:
                self._running -= 1
                self._is_idle.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._turn:
            with self._is_idle:
                self._is_idle.wait_for(lambda: not self._running)
            yield

    def _note(self, name: str, tokens: int) -> None:
        """Count a batch; log it unless another was logged within a minute."""
        self._count(name)
        if (now := time.monotonic()) < self._logged_at + LOG_EVERY_S:
            return
        self._logged_at, memory = now, total_memory()
        LOGGER.warning(
            "%s: no memory for a batch of %d tokens, which runs again alone and in parts%s; raise the limit, or lower "
            "batch_tokens or engine_slots (docs/operations.md#memory). More of them are counted, and logged once a minute",
            name,
            tokens,
            "" if memory is None else f". This container or machine has {memory >> 20} MiB",
        )


def _run_one(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
    try:
        return engine.run(encodings)
    except MemoryError:
        raise OutOfMemoryError(sum(map(len, encodings))) from None


def run_in_parts(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
    """Run a batch, in halves if it gets no memory. An engine that got none has freed what it kept of other runs."""
    try:
        return engine.run(encodings)
    except NO_MEMORY:
        if len(encodings) == 1:
            return _run_one(engine, encodings)
    middle = len(encodings) // 2
    first, second = (run_in_parts(engine, part) for part in (encodings[:middle], encodings[middle:]))
    return Outputs(first.texts + second.texts, (first.padding_ratio + second.padding_ratio) / 2)
