"""The bound of the queue follows from the measurements of a start."""

import asyncio
import threading
from collections.abc import Sequence
from math import inf

import numpy as np
from prometheus_client import generate_latest

from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.engine.slot_layout import SlotLayout
from service.metrics import Metrics
from service.scheduling.fair_queue import Throughput
from service.settings import ServeSettings
from service.workers.scheduled_models import (
    MAX_QUEUE_TOKENS,
    MIN_QUEUE_TOKENS,
    ScheduledModels,
    queue_bound,
)
from tests.support.tiny import tiny_tokenizer

PIECES = tiny_tokenizer().pieces(["a film"])[0]


def test_the_queue_holds_what_the_fastest_model_does_in_a_requests_time() -> None:
    throughput = [Throughput(0.001, 1e-4, 64, slots) for slots in (4, 1)]
    assert queue_bound(throughput, 30_000) == round(30 * throughput[0].tokens_per_s)


def test_the_queue_is_neither_too_small_for_a_document_nor_too_large_for_the_memory() -> None:
    throughput = [Throughput(0.0, 1e-4, 64)]
    assert queue_bound(throughput, 10) == MIN_QUEUE_TOKENS
    assert queue_bound(throughput, 1_000_000) == MAX_QUEUE_TOKENS


def test_a_batch_that_ends_after_its_model_left_is_counted_and_answered() -> None:
    began, leave = threading.Event(), threading.Event()

    class Slow:
        def run(self, encodings: Sequence[Encoding]) -> Outputs:
            began.set()
            assert leave.wait(20)
            return Outputs([np.zeros((1, 2), np.float32) for _ in encodings], 0.0)

    async def asked() -> int:
        models = ScheduledModels(ServeSettings(), SlotLayout(1, 1))
        models.engines["mood@1"], models.versions["mood@1"] = Slow(), "7"
        models.throughput["mood@1"], models.budgets["mood@1"] = Throughput(0.001, 1e-4, 64), 64
        metrics = Metrics()
        scheduler = models.start(metrics)
        answer = asyncio.create_task(scheduler.submit("mood@1", [tiny_tokenizer().single(PIECES)], inf))
        await asyncio.to_thread(began.wait, 20)
        models.remove("mood@1")
        leave.set()
        result = await asyncio.wait_for(answer, 20)
        await scheduler.close()
        assert 'version="7"' in generate_latest(metrics.registry).decode()
        return len(result.outputs)

    assert asyncio.run(asked()) == 1
