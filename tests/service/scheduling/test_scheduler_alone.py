"""A job that has the engine to itself, as one that was there when the engine's process died; and what the ledger hears."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bert.errors import DeadlineExceededError, EngineError, NotReadyError
from service.scheduling.fair_queue import FairQueue
from service.scheduling.scheduler import Scheduler
from service.scheduling.scheduler_protocol import Result
from service.scheduling.throughput import Speed
from tests.support.scheduler_bench import Bench, FakeEngine, submitted, text, values


@dataclass
class Notes:
    """A ledger that keeps all it was told; of a job that is in a batch twice, the key once."""

    begun: list[list[int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def begin(self, keys: Sequence[int]) -> int:
        self.begun.append(list(dict.fromkeys(keys)))
        return len(self.begun) - 1

    def end(self, place: int) -> None:
        self.ended.append(place)


@dataclass
class Noted(Bench):
    """A bench whose scheduler has a ledger."""

    notes: Notes = field(default_factory=Notes)

    def start(self) -> Scheduler:
        speed = Speed(0.0, self.slots / 1000, self.budget, self.slots)
        queue = FairQueue(self.max_tokens, {"m": self.budget}, {"m": speed})
        return Scheduler({"m": self.engine}, queue, self.slots, clock=self.clock, ledger=self.notes)


def alone(scheduler: Scheduler, *marks: int, tokens: int = 10, key: int = 0) -> "asyncio.Task[Result]":
    texts = [text(tokens, mark) for mark in marks]
    return asyncio.create_task(scheduler.submit("m", texts, key=key, alone=True))


def noted(scheduler: Scheduler, key: int, *marks: int, tokens: int = 10) -> "asyncio.Task[Result]":
    texts = [text(tokens, mark) for mark in marks]
    return asyncio.create_task(scheduler.submit("m", texts, key=key))


def test_it_waits_until_nothing_runs_and_nothing_starts_before_it_is_done() -> None:
    bench = Bench(slots=2, budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        running = [submitted(scheduler, 1), submitted(scheduler, 2)]
        await bench.started(2)
        lone, waiting = alone(scheduler, 7), [submitted(scheduler, 3), submitted(scheduler, 4)]
        await asyncio.sleep(0.01)
        bench.engine.gate.release(1)
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.01)
        assert len(bench.engine.batches) == 2
        bench.engine.gate.release(1)
        await bench.started(3)
        await asyncio.sleep(0.01)
        assert bench.engine.batches[2:] == [[7]] and bench.engine.at_once == 1
        bench.engine.gate.release(1)
        assert values(await lone) == [7]
        await bench.started(5)
        assert bench.engine.at_once == 2
        bench.engine.gate.release(2)
        await asyncio.gather(*running, *waiting)

    bench.run(scenario)


def test_it_goes_before_those_who_waited_longer() -> None:
    bench = Bench(budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        tasks = [submitted(scheduler, 1)]
        await bench.started(1)
        tasks += [submitted(scheduler, 2), submitted(scheduler, 3), alone(scheduler, 7), alone(scheduler, 8)]
        await asyncio.sleep(0.01)
        bench.engine.gate.release(5)
        await asyncio.gather(*tasks)
        assert bench.engine.batches == [[1], [7], [8], [2], [3]]

    bench.run(scenario)


def test_two_are_not_together_though_they_would_fit() -> None:
    bench = Bench(slots=2)

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        results = await asyncio.gather(alone(scheduler, 1, 2), alone(scheduler, 3), submitted(scheduler, 4))
        assert [values(result) for result in results] == [[1, 2], [3], [4]]
        assert bench.engine.batches == [[1, 2], [3], [4]]
        assert bench.engine.most_at_once == 1

    bench.run(scenario)


def test_one_longer_than_the_budget_runs_in_parts_with_nobody_between() -> None:
    bench = Bench(slots=2, budget=25)

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        lone, other = alone(scheduler, 1, 2, 3, 4, 5), submitted(scheduler, 9)
        assert values(await lone) == [1, 2, 3, 4, 5]
        assert values(await other) == [9]
        assert bench.engine.batches == [[1, 2], [3, 4], [5], [9]]
        assert bench.engine.most_at_once == 1

    bench.run(scenario)


def test_between_its_parts_the_others_have_as_long() -> None:
    """A document that was in the engine when it died must not stop the service for as long as it takes."""
    bench = Bench(budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        lone, others = alone(scheduler, 1, 2, 3), [submitted(scheduler, mark) for mark in (7, 8, 9)]
        await bench.started(1)
        assert scheduler.waiting("m")[0] == 50
        assert scheduler.waiting("m")[1] == 5
        for run, seconds in enumerate((2.0, 1.5, 1.5, 1.0, 1.0, 1.0), 1):
            await bench.started(run)
            bench.clock.now += seconds
            bench.engine.gate.release(1)
        await asyncio.gather(lone, *others)
        # The first part took 2 s, then two others took 3, the second part 1, and the last of the others had its turn.
        assert bench.engine.batches == [[1], [7], [8], [2], [9], [3]]
        assert scheduler.waiting("m")[0] == 0

    bench.run(scenario)


def test_it_goes_on_though_those_whose_turn_it_was_were_late() -> None:
    """Nothing runs then, and nobody else may ever come to wake the scheduler."""
    bench = Bench(budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        lone = alone(scheduler, 1, 2)
        late = asyncio.create_task(scheduler.submit("m", [text(10, 7)], deadline=1.5))
        await bench.started(1)
        bench.clock.now = 2.0
        bench.engine.gate.release(2)
        assert values(await asyncio.wait_for(lone, 5)) == [1, 2]
        with pytest.raises(DeadlineExceededError):
            await late
        assert bench.engine.batches == [[1], [2]]

    bench.run(scenario)


def test_a_text_longer_than_the_budget_runs_whole() -> None:
    bench = Bench(budget=25)

    async def scenario(scheduler: Scheduler) -> None:
        bench.engine.gate.release(100)
        assert values(await alone(scheduler, 1, 2, tokens=30)) == [1, 2]
        assert bench.engine.batches == [[1], [2]]

    bench.run(scenario)


def test_it_is_not_refused_by_a_full_queue_and_takes_none_of_its_room() -> None:
    bench = Bench(max_tokens=100)

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 0)
        await bench.started(1)
        waiting = submitted(scheduler, 1, tokens=100)
        lone = alone(scheduler, 7, tokens=60)
        await asyncio.sleep(0.01)
        assert (scheduler.queue.tokens, scheduler.queue.texts) == (100, 1)
        bench.engine.gate.release(3)
        await asyncio.gather(running, waiting, lone)
        assert (scheduler.queue.tokens, scheduler.queue.texts) == (0, 0)

    bench.run(scenario)


def test_one_that_is_cancelled_while_it_waits_is_skipped() -> None:
    bench = Bench(slots=2)

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 1)
        await bench.started(1)
        gone, stays, other = alone(scheduler, 7), alone(scheduler, 8), submitted(scheduler, 2)
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        bench.engine.gate.release(3)
        await asyncio.gather(running, stays, other)
        assert bench.engine.batches == [[1], [8], [2]]

    bench.run(scenario)


def test_when_the_last_is_cancelled_those_it_held_up_run() -> None:
    bench = Bench(slots=2)

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 1)
        await bench.started(1)
        gone, other = alone(scheduler, 7), submitted(scheduler, 2)
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        bench.engine.gate.release(2)
        await asyncio.gather(running, other)
        assert bench.engine.batches == [[1], [2]]

    bench.run(scenario)


def test_one_that_is_cancelled_between_its_parts_does_not_run_the_rest() -> None:
    bench = Bench(budget=10)

    async def scenario(scheduler: Scheduler) -> None:
        gone = alone(scheduler, 1, 2, 3)
        await bench.started(1)
        other = submitted(scheduler, 9)
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        bench.engine.gate.release(2)
        assert values(await other) == [9]
        assert bench.engine.batches == [[1], [9]]

    bench.run(scenario)


def test_one_that_fails_in_a_part_does_not_run_the_rest() -> None:
    bench = Bench(budget=10, engine=FakeEngine(threading.Semaphore(1000), poison=2))

    async def scenario(scheduler: Scheduler) -> None:
        with pytest.raises(EngineError):
            await alone(scheduler, 1, 2, 3, 4, 5)
        assert values(await submitted(scheduler, 9)) == [9]
        assert bench.engine.batches[:2] == [[1], [2]]
        assert not {4, 5} & {mark for batch in bench.engine.batches for mark in batch}

    bench.run(scenario)


def test_closing_refuses_it_where_it_waits() -> None:
    bench = Bench()

    async def scenario(scheduler: Scheduler) -> None:
        running = submitted(scheduler, 0)
        await bench.started(1)
        lone = alone(scheduler, 7)
        await asyncio.sleep(0.01)
        bench.engine.gate.release(1)
        await scheduler.close()
        for task in (running, lone):
            with pytest.raises(NotReadyError):
                await task
        assert bench.engine.batches == [[0]]

    bench.run(scenario)


def test_the_ledger_hears_of_each_batch_before_it_runs_and_after() -> None:
    bench = Noted(slots=2, budget=20)

    async def scenario(scheduler: Scheduler) -> None:
        first, second = noted(scheduler, 11, 1, 2), noted(scheduler, 12, 3, 4)
        await bench.started(2)
        assert (sorted(bench.notes.begun), bench.notes.ended) == ([[11], [12]], [])
        bench.engine.gate.release(2)
        await asyncio.gather(first, second)
        together = [noted(scheduler, 13, 5), noted(scheduler, 14, 6)]
        await bench.started(3)
        assert bench.notes.begun[2:] in ([[13, 14]], [[13], [14]])
        bench.engine.gate.release(100)
        await asyncio.gather(*together, alone(scheduler, 7, 8, 9, key=15))
        assert bench.notes.begun[-2:] == [[15], [15]]

    bench.run(scenario)
    assert sorted(bench.notes.ended) == list(range(len(bench.notes.begun)))


def test_a_batch_of_several_requests_is_noted_with_all_their_keys() -> None:
    bench = Noted()

    async def scenario(scheduler: Scheduler) -> None:
        first = noted(scheduler, 10, 0)
        await bench.started(1)
        others = [noted(scheduler, 11, 1, 2), noted(scheduler, 12, 3), noted(scheduler, 13, 4)]
        await asyncio.sleep(0.01)
        bench.engine.gate.release(2)
        await asyncio.gather(first, *others)
        assert bench.notes == Notes([[10], [11, 12, 13]], [0, 1])

    bench.run(scenario)


def test_the_ledger_hears_that_a_batch_failed_and_that_its_jobs_run_again() -> None:
    bench = Noted(engine=FakeEngine(threading.Semaphore(1000), poison=13))

    async def scenario(scheduler: Scheduler) -> None:
        tasks = [noted(scheduler, key, mark) for key, mark in ((1, 5), (2, 13))]
        assert isinstance((await asyncio.gather(*tasks, return_exceptions=True))[1], EngineError)

    bench.run(scenario)
    assert bench.notes == Notes([[1, 2], [1], [2]], [0, 1, 2])


def test_of_a_job_that_was_cancelled_while_it_ran_the_end_is_noted() -> None:
    bench = Noted()

    async def scenario(scheduler: Scheduler) -> None:
        gone = noted(scheduler, 5, 1)
        await bench.started(1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert bench.notes == Notes([[5]], [])

    bench.run(scenario)
    assert bench.notes == Notes([[5]], [0])
