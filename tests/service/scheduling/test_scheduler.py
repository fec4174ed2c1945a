"""The scheduler with an engine that runs when the test says so, and a clock that the test moves."""

import asyncio
import threading

import pytest

from bert.errors import DeadlineExceededError, EngineError, NotReadyError, QueueFullError, TooLateError
from service.scheduling.scheduler import SUSPECT_AFTER, Scheduler
from service.scheduling.scheduler_protocol import SubmitResult
from tests.support.scheduler_bench import Bench, FakeEngine, submitted, values


def test_outputs_come_back_in_the_order_of_the_texts() -> None:
    bench = Bench(budget=25)

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        results = await asyncio.gather(submitted(scheduler, 3, 1, 2, 5), submitted(scheduler, 9, 8))
        assert [values(result) for result in results] == [[3, 1, 2, 5], [9, 8]]

    bench.run(scenario)


def test_a_lone_text_does_not_wait_and_what_arrives_meanwhile_shares_the_next_batch() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, 1)
        await bench.started(1)
        others = [submitted(scheduler, mark) for mark in (2, 3, 4)]
        await asyncio.sleep(0.01)
        bench.engine.gate.release(2)
        await asyncio.gather(first, *others)
        assert bench.engine.batches == [[1], [2, 3, 4]]

    bench.run(scenario)


def test_requests_that_arrive_together_share_a_batch_without_a_timer() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(1)
        await asyncio.gather(*(submitted(scheduler, mark) for mark in range(5)))
        assert bench.engine.batches == [[0, 1, 2, 3, 4]]

    bench.run(scenario)


def test_no_more_batches_run_at_once_than_there_are_slots() -> None:
    bench = Bench(slots=2, budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        tasks = [submitted(scheduler, mark) for mark in range(6)]
        await bench.started(2)
        await asyncio.sleep(0.02)
        assert len(bench.engine.batches) == 2
        bench.engine.gate.release(6)
        await asyncio.gather(*tasks)
        assert bench.engine.most_at_once == 2

    bench.run(scenario)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    bench = Bench(max_tokens=100)

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 0, tokens=50)
        await bench.started(1)
        waiting = submitted(scheduler, 1, tokens=90)
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as refused:
            await submitted(scheduler, 2, 3, tokens=30)
        assert refused.value.retry_after_s == pytest.approx((90 + 60 - 100) / 1000)
        assert scheduler.queue.tokens == 90
        bench.engine.gate.release(2)
        await asyncio.gather(running, waiting)

    bench.run(scenario)


def test_throughput_is_learned_from_the_batches() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        task = submitted(scheduler, 0, tokens=50)
        await bench.started(1)
        bench.clock.now = 0.01
        bench.engine.gate.release(1)
        await task
        assert 1000 < scheduler.queue.throughput["m"].tokens_per_s < 5000
        assert bench.observed[0][0] == "m"
        assert bench.observed[0][1:] == pytest.approx((50, 1, 0.25, 0.01))

    bench.run(scenario)


def test_times_are_those_of_the_queue_and_of_the_engine() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, 0)
        await bench.started(1)
        second = submitted(scheduler, 1)
        await asyncio.sleep(0)
        bench.clock.now = 2.0
        bench.engine.gate.release(1)
        await bench.started(2)
        bench.clock.now = 5.0
        bench.engine.gate.release(1)
        results = await asyncio.gather(first, second)
        assert [(result.queue_s, result.inference_s) for result in results] == [(0.0, 2.0), (2.0, 3.0)]

    bench.run(scenario)


def test_a_cancelled_request_leaves_the_queue_and_never_runs() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, 0)
        await bench.started(1)
        gone, stays = submitted(scheduler, 1), submitted(scheduler, 2)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert (scheduler.queue.tokens, scheduler.queue.texts) == (10, 1)
        bench.engine.gate.release(2)
        await asyncio.gather(first, stays)
        assert bench.engine.batches == [[0], [2]]

    bench.run(scenario)


def test_a_request_that_is_cancelled_while_it_runs_harms_no_other() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        gone, stays = submitted(scheduler, 1), submitted(scheduler, 2)
        await bench.started(1)
        gone.cancel()
        bench.engine.gate.release(1)
        assert values(await stays) == [2]

    bench.run(scenario)


def test_a_request_past_its_deadline_is_dropped_when_the_batch_is_formed() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, 0)
        await bench.started(1)
        late, early = submitted(scheduler, 1, deadline=1.0), submitted(scheduler, 2)
        await asyncio.sleep(0)
        bench.clock.now = 1.5
        bench.engine.gate.release(2)
        with pytest.raises(DeadlineExceededError):
            await late
        await asyncio.gather(first, early)
        assert bench.engine.batches == [[0], [2]]
        assert scheduler.queue.tokens == 0

    bench.run(scenario)


def test_what_would_be_done_too_late_is_refused_at_once_and_told_when_to_come_back() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, 0)
        await bench.started(1)
        waiting = submitted(scheduler, *range(60), tokens=100)
        await asyncio.sleep(0)
        with pytest.raises(TooLateError) as refused:
            await submitted(scheduler, *range(20), tokens=100, deadline=5.0)
        assert refused.value.needs_s == pytest.approx(8.1, rel=0.01)
        assert refused.value.retry_after_s == pytest.approx(8.1 - 0.8 * 5.0, rel=0.01)
        assert scheduler.queue.tokens == 6000
        bench.engine.gate.release(100)
        await asyncio.gather(first, waiting)

    bench.run(scenario)


def test_when_the_engine_became_slow_those_who_cannot_be_answered_hear_it_before_their_deadline() -> None:
    bench = Bench(max_tokens=100_000)

    async def scenario(scheduler: Scheduler) -> None:
        first = submitted(scheduler, *range(20), tokens=100, deadline=30.0)
        await bench.started(1)
        later = [submitted(scheduler, *range(20), tokens=100, deadline=20.0) for _ in range(5)]
        await asyncio.sleep(0)
        bench.clock.now = 3.0
        bench.engine.gate.release(1)
        results = await asyncio.gather(*later, return_exceptions=True)
        assert all(isinstance(result, TooLateError) for result in results)
        assert scheduler.queue.tokens == 1800
        bench.engine.gate.release(100)
        assert len(values(await first)) == 20

    bench.run(scenario)


def test_an_idle_service_tries_what_it_thinks_it_cannot_do() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        assert len(values(await submitted(scheduler, *range(90), tokens=100, deadline=1.0))) == 90
        assert scheduler.queue.tokens == 0

    bench.run(scenario)


def test_a_poisoned_text_fails_alone() -> None:
    bench = Bench(engine=FakeEngine(threading.Semaphore(0), poison=13))

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        tasks = [submitted(scheduler, mark) for mark in (1, 13, 2)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], EngineError)
        assert [
            values(result) for result in (results[0], results[2]) if isinstance(result, SubmitResult)
        ] == [
            [1],
            [2],
        ]
        assert bench.engine.batches == [[1, 13, 2], [1], [13], [2]]
        assert values(await submitted(scheduler, 7)) == [7]
        assert scheduler.queue.tokens == 0

    bench.run(scenario)


def test_an_answer_that_is_not_finite_is_an_error_of_its_own_request_only() -> None:
    bench = Bench(engine=FakeEngine(threading.Semaphore(0), nan=5))

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        results = await asyncio.gather(
            submitted(scheduler, 1), submitted(scheduler, 5), return_exceptions=True
        )
        assert isinstance(results[0], SubmitResult)
        assert isinstance(results[1], EngineError)

    bench.run(scenario)


@pytest.mark.parametrize("failing", [{"poison": 13}, {"nan": 13}], ids=["raises", "answers nan"])
def test_a_model_that_keeps_failing_is_suspected_until_it_answers(failing: dict[str, int]) -> None:
    bench = Bench(
        engine=FakeEngine(
            threading.Semaphore(0), poison=failing.get("poison", -1), nan=failing.get("nan", -2)
        )
    )

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        for _ in range(SUSPECT_AFTER):
            assert scheduler.suspects() == set()
            with pytest.raises(EngineError):
                await submitted(scheduler, 13)
        assert scheduler.suspects() == {"m"}
        await submitted(scheduler, 1)
        assert scheduler.suspects() == set()

    bench.run(scenario)


def test_the_oldest_batch_in_the_engine_and_how_long_it_runs_are_known() -> None:
    bench = Bench(slots=2, budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        assert scheduler.oldest() is None
        bench.clock.now = 1.0
        first = submitted(scheduler, 0)
        await bench.started(1)
        bench.clock.now = 7.0
        second = submitted(scheduler, 1)
        await bench.started(2)
        bench.clock.now = 9.0
        oldest = scheduler.oldest()
        assert oldest is not None and oldest[0] == 1.0 and scheduler.health_error() is None
        bench.clock.now = 62.0
        assert scheduler.health_error() == "stuck: a batch has been in the engine for 61 s"
        bench.engine.gate.release(2)
        await asyncio.gather(first, second)
        assert scheduler.oldest() is None and scheduler.health_error() is None

    bench.run(scenario)


def test_closing_refuses_what_waits_and_lets_the_engine_finish() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 0)
        await bench.started(1)
        waiting = submitted(scheduler, 1)
        await asyncio.sleep(0)
        closing = asyncio.create_task(scheduler.close())
        await asyncio.sleep(0.01)
        bench.engine.gate.release(1)
        await closing
        for task in (running, waiting):
            with pytest.raises(NotReadyError):
                await task
        with pytest.raises(NotReadyError):
            await submitted(scheduler, 2)
        assert bench.engine.batches == [[0]]

    bench.run(scenario)
