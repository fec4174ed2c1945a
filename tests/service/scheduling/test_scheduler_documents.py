"""Documents and sentences in the engine at once: the scheduler tells the policy which slots have a document."""

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np

from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.scheduling.fair_queue import FairQueue
from service.scheduling.scheduler import Scheduler
from tests.support.scheduler_bench import text

BUDGET, WINDOW, SENTENCE = 10, 10, 5
"""Tokens of a batch, of a document's window, and of a sentence: no batch has both."""


class CountingEngine:
    """Takes a millisecond, and notes how many documents it had at once."""

    def __init__(self) -> None:
        self.lock, self.documents, self.most = threading.Lock(), 0, 0

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        is_document = any(len(encoding) == WINDOW for encoding in encodings)
        with self.lock:
            self.documents += is_document
            self.most = max(self.most, self.documents)
        time.sleep(0.001)
        with self.lock:
            self.documents -= is_document
        return Outputs([np.zeros((1, 1), np.float32) for _ in encodings], 0.0)


def read_beside_sentences(slots: int, *, sentences: bool) -> CountingEngine:
    """Read a document of 100 windows, with a sentence always waiting or none."""
    engine = CountingEngine()

    async def scenario() -> None:
        scheduler = Scheduler({"m": engine}, FairQueue(10**6, {"m": BUDGET}, slots=slots), slots)
        is_read = asyncio.Event()

        async def ask() -> None:
            while sentences and not is_read.is_set():
                await scheduler.submit("m", [text(SENTENCE)])

        asking = [asyncio.create_task(ask()) for _ in range(4 * slots)]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            await scheduler.submit("m", [text(WINDOW)] * 100)
        is_read.set()
        await asyncio.gather(*asking)
        await scheduler.close()

    asyncio.run(scenario())
    return engine


def test_a_document_leaves_one_slot_to_sentences_that_never_end_and_is_read_all_the_same() -> None:
    assert read_beside_sentences(2, sentences=True).most == 1
    assert read_beside_sentences(3, sentences=True).most == 2


def test_a_document_alone_has_all_slots() -> None:
    assert read_beside_sentences(2, sentences=False).most == 2
