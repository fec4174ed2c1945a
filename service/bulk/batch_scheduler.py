"""A scheduler for bulk work: all texts are known beforehand, so those of like lengths share batches.

Nothing is measured and nothing depends on time: the same rows make the same batches, and so the same bytes of output.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np

from bert.errors import EngineError
from bert.graph_inputs import flat
from bert.tokenizer import Encoding
from service.engine.models import Engine, Floats
from service.scheduling.fair_queue import NO_LANE, Lane
from service.scheduling.scheduler_protocol import SubmitResult


class BatchScheduler:
    """Scheduler of one model for requests of any size, first come first served; see `SchedulerProtocol`."""

    engines_ended = 0
    """Always 0: the engine is in this process and ends with it."""

    def __init__(self, engine: Engine, slots: int, batch_tokens: int) -> None:
        """Run `slots` batches at once, each of at most `batch_tokens` or of one text."""
        self._engine, self._batch_tokens = engine, batch_tokens
        self._pool = ThreadPoolExecutor(slots, "engine")

    @property
    def max_tokens(self) -> int:
        """Return a number that no request reaches: the caller bounds what it sends."""
        return sys.maxsize

    async def submit(
        self, model: str, encodings: Sequence[Encoding], deadline: float = float("inf"), lane: Lane = NO_LANE
    ) -> SubmitResult:
        """Run the encodings. Raises EngineError if the engine fails on one of them."""
        loop, outputs = asyncio.get_running_loop(), dict[int, Floats]()
        batches = list(batches_of_like_lengths([len(each) for each in encodings], self._batch_tokens))
        found = await asyncio.gather(
            *(loop.run_in_executor(self._pool, self._run, [encodings[n] for n in batch]) for batch in batches)
        )
        outputs.update(zip(chain(*batches), chain(*found), strict=True))
        return SubmitResult([outputs[n] for n in range(len(encodings))], 0.0, 0.0)

    def suspects(self) -> set[str]:
        """Return no model: each row reports its own failure."""
        return set()

    def health_error(self) -> str | None:
        """Return None: a bulk run has no health checks."""
        return None

    async def close(self) -> None:
        """Drop the batches that have not begun, and wait for the others."""
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: self._pool.shutdown(cancel_futures=True)
        )

    def _run(self, encodings: Sequence[Encoding]) -> Sequence[Floats]:
        outputs = self._engine.run(encodings).texts
        if not np.isfinite(flat(outputs)).all():
            raise EngineError("the model gave a number that is not finite")
        return outputs


def batches_of_like_lengths(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of texts in batches, longest first; a text over `batch_tokens` is alone."""
    batch, tokens = list[int](), 0
    for index in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if batch and tokens + lengths[index] > batch_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch
