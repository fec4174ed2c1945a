"""How long a batch may run before it counts as hung."""

import pytest

from bert.packing import CostModel
from service.scheduling.fair_queue import Batch, BatchItem, FairQueue, Job, Throughput
from service.scheduling.scheduler import SLOWEST_BATCHES, HangLimit

SPEED, BUDGET = 1e-6, 512


def limit_of(hung_after_s: float = 5.0, longest: int = 8192) -> HangLimit:
    throughput = {"m": Throughput(0.0, SPEED, BUDGET, cost=CostModel(1000.0))}
    return HangLimit(hung_after_s, 30.0, throughput, {"m": BUDGET}, {"m": longest})


def batch_of(limit: HangLimit, *texts: int) -> Batch:
    queue, job = FairQueue(100_000, limit.budgets, limit.throughput, 1), Job("m", texts)
    queue.admit(job)
    return Batch("m", (BatchItem(job, 0, len(texts)),))


def test_a_batch_of_short_texts_may_take_hung_after_s_and_no_request_timeout() -> None:
    limit = limit_of()
    assert limit.seconds() == 5.0
    for texts in ((6,), (32,) * 16, (64,) * 100):
        assert limit.seconds(batch_of(limit, *texts)) == 5.0


def test_a_text_longer_than_a_full_batch_outlives_its_request() -> None:
    limit = limit_of()
    assert limit.seconds(batch_of(limit, 8192)) == 35.0
    assert limit.seconds(batch_of(limit, 6, 1000)) == 35.0


def test_the_limit_grows_with_the_slowest_batch_at_the_speed_observed() -> None:
    limit = limit_of()
    speed = limit.throughput["m"]
    for _ in range(100):
        speed.learn(512, 1000 * 512 * SPEED)
    slowest_s = SLOWEST_BATCHES * speed.seconds(speed.work(8192))
    assert slowest_s > 100
    assert limit.seconds() == limit.seconds(batch_of(limit, 6)) == pytest.approx(slowest_s)
    assert limit.seconds(batch_of(limit, 8192)) == pytest.approx(slowest_s + 30)
