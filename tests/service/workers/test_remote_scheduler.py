"""A frontend keeps its requests while engine processes come and go. The test plays the engine."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bert.errors import EngineError
from service.workers.messages import (
    MAX_RETRIES,
    Cancel,
    Failed,
    Started,
)
from service.workers.remote_scheduler import RemoteScheduler
from tests.support.played_engine import PlayedEngine, run, submitted, until, value


def test_an_engine_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        waiting, engine = asyncio.create_task(scheduler.hello()), PlayedEngine(tmp_path)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await engine.start()
        assert await waiting == engine.hello
        early = submitted(scheduler)
        (request,) = await engine.requests(1)
        engine.answer(request, 3)
        assert value(await early) == 3
        await engine.die()

    run(tmp_path, scenario)


def test_what_an_engine_left_unanswered_goes_to_the_next_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path, 200)
        await first.start()
        await scheduler.hello()
        tasks = [submitted(scheduler) for _ in range(4)]
        requests = await first.requests(4)
        first.answer(requests[1], 1)
        assert value(await tasks[1]) == 1
        tasks[2].cancel()
        await first.die()
        await until(lambda: scheduler.health_error() is not None)
        during = submitted(scheduler)
        await second.start()
        again = await second.requests(3)
        # These were admitted once and are not refused now; the last one was not admitted by any engine yet.
        assert again[:2] == [replace(request, attempts=1) for request in (requests[0], requests[3])]
        assert not any(request.attempts for request in (*requests, again[2]))
        assert len({request.key for request in (*requests, *again)}) == 5
        assert scheduler.health_error() is None and scheduler.max_tokens == 200
        for number, request in enumerate(reversed(again)):
            second.answer(request, number)
        assert [value(await task) for task in (tasks[0], tasks[3], during)] == [2, 1, 0]
        await second.die()

    run(tmp_path, scenario)


def test_a_request_is_given_up_when_the_engine_ends_on_its_last_attempt_and_no_other_is(
    tmp_path: Path,
) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
        await engine.start()
        await scheduler.hello()
        poison, neighbour = submitted(scheduler), submitted(scheduler)
        for death in range(MAX_RETRIES + 1):
            requests = await engine.requests(2)
            assert [request.attempts for request in requests] == [death, death]
            if requests[0].is_last_attempt:
                engine.connections[-1].send(Started(requests[0].key))
            await engine.die()
            await until(lambda: scheduler.health_error() is not None)
            engine = PlayedEngine(tmp_path)
            await engine.start()
        with pytest.raises(EngineError, match=f"ended {MAX_RETRIES + 1} times while it worked on this"):
            await poison
        for _ in range(2):  # deaths on another frontend's requests
            (request,) = await engine.requests(1)
            assert request.attempts == MAX_RETRIES
            await engine.die()
            await until(lambda: scheduler.health_error() is not None)
            engine = PlayedEngine(tmp_path)
            await engine.start()
        (request,) = await engine.requests(1)
        engine.connections[-1].send(Started(request.key))
        engine.answer(request, 4)
        assert value(await neighbour) == 4
        await engine.die()

    run(tmp_path, scenario)


def test_a_cancelled_request_is_cancelled_in_the_engine_and_its_late_result_is_ignored(
    tmp_path: Path,
) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
        await engine.start()
        await scheduler.hello()
        gone, stays = submitted(scheduler), submitted(scheduler)
        requests = await engine.requests(2)
        gone.cancel()
        await until(lambda: Cancel(requests[0].key) in engine.got)
        engine.answer(requests[0], 1)
        engine.connections[-1].send(Failed.of(requests[0].key, EngineError("late")))
        engine.connections[-1].send(Cancel(9))  # nothing that an engine says
        engine.answer(requests[1], 2)
        assert value(await stays) == 2 and gone.cancelled()
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_dies_before_it_has_said_anything_is_waited_out(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, mute, engine = PlayedEngine(tmp_path), PlayedEngine(tmp_path), PlayedEngine(tmp_path)
        await first.start()
        await scheduler.hello()
        await first.die()
        mute.made = lambda connection: mute.connections.append(connection)  # type: ignore[method-assign]
        await until(lambda: scheduler.health_error() is not None)
        await mute.start()
        task = submitted(scheduler)
        await until(lambda: bool(mute.connections))
        assert mute.got == []
        await mute.die()
        await engine.start()
        (request,) = await engine.requests(1)
        engine.answer(request, 4)
        assert value(await task) == 4
        await engine.die()

    run(tmp_path, scenario)
