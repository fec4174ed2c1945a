"""A frontend keeps its requests while engine processes come and go. The test plays the engine."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.errors import EngineError, NotReadyError, QueueFullError
from bert.tokenizer import Encoding
from service.scheduling.scheduler_protocol import SubmitResult
from service.workers.connection import Connection
from service.workers.messages import (
    MAX_RETRIES,
    Cancel,
    Done,
    Failed,
    Health,
    Hello,
    Message,
    Started,
    Submit,
)
from service.workers.remote_scheduler import AWAY_S, SILENT_S, RemoteScheduler
from service.workers.runtime_dir import SOCKET


def hello(max_tokens: int, version: str = "v1") -> Hello:
    return Hello(max_tokens, {"m": 64}, {"m": "classification"}, {"m": version})


class Engine:
    """An engine process that answers when the test says so."""

    def __init__(self, folder: Path, max_tokens: int = 100) -> None:
        self.path, self.hello = folder / SOCKET, hello(max_tokens)
        self.got: list[Message] = []
        self.connections: list[Connection] = []

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self.server = await asyncio.get_running_loop().create_unix_server(self.connection, str(self.path))

    def connection(self) -> Connection:
        return Connection(lambda _, message: self.got.append(message), lambda _: None, self.made)

    def made(self, connection: Connection) -> None:
        self.connections.append(connection)
        connection.send(self.hello)

    async def die(self) -> None:
        self.server.close()
        for connection in self.connections:
            connection.close()

    async def requests(self, count: int) -> list[Submit]:
        """Wait for so many requests, and return them."""
        await until(lambda: len(self.submitted) >= count)
        assert len(self.submitted) == count
        return self.submitted

    @property
    def submitted(self) -> list[Submit]:
        return [message for message in self.got if isinstance(message, Submit)]

    def answer(self, request: Submit, value: float) -> None:
        self.connections[-1].send(
            Done.of(request.key, SubmitResult([np.full((1, 1), value, np.float32)], 0.0, 0.0))
        )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def submitted(scheduler: RemoteScheduler, tokens: int = 10) -> "asyncio.Task[SubmitResult]":
    ids = np.arange(tokens, dtype=np.int32)
    text = Encoding(ids, ids, np.zeros((tokens, 2), np.int32), ids, ids)
    return asyncio.create_task(scheduler.submit("m", [text]))


def value(result: SubmitResult) -> float:
    (output,) = result.outputs
    return float(output[0, 0])


changed: list[Path] = []
"""Where a frontend would have ended itself."""


def run(folder: Path, scenario: Callable[[RemoteScheduler], Awaitable[None]]) -> None:
    async def main() -> None:
        scheduler = RemoteScheduler(folder, lambda: changed.append(folder))
        try:
            async with asyncio.timeout(10):
                await scenario(scheduler)
        finally:
            await scheduler.close()
            await asyncio.sleep(0.01)  # for what is closing

    asyncio.run(main())


def test_an_engine_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        waiting, engine = asyncio.create_task(scheduler.hello()), Engine(tmp_path)
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
        first, second = Engine(tmp_path), Engine(tmp_path, 200)
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
        engine = Engine(tmp_path)
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
            engine = Engine(tmp_path)
            await engine.start()
        with pytest.raises(EngineError, match=f"ended {MAX_RETRIES + 1} times while it worked on this"):
            await poison
        for _ in range(2):  # deaths on another frontend's requests
            (request,) = await engine.requests(1)
            assert request.attempts == MAX_RETRIES
            await engine.die()
            await until(lambda: scheduler.health_error() is not None)
            engine = Engine(tmp_path)
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
        engine = Engine(tmp_path)
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


def test_while_the_engine_is_away_no_more_wait_than_it_would_take(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = Engine(tmp_path), Engine(tmp_path)
        await first.start()
        await scheduler.hello()
        await first.die()
        await until(lambda: scheduler.health_error() is not None)
        away = list[tuple[int, int]]()
        scheduler._note_away = lambda requests, tokens: away.append((requests, tokens))
        waiting = [submitted(scheduler, 60), submitted(scheduler, 40)]
        await asyncio.sleep(0)
        assert away[-1] == (2, 100)
        with pytest.raises(QueueFullError) as refused:
            await submitted(scheduler, 1)
        assert (refused.value.queued_tokens, refused.value.retry_after_s) == (100, AWAY_S)
        waiting[0].cancel()
        await asyncio.sleep(0)
        waiting.append(submitted(scheduler, 50))
        await second.start()
        for request in await second.requests(2):
            second.answer(request, 5)
        assert [value(await task) for task in waiting[1:]] == [5, 5]
        assert (2, 90) in away and away[-1] == (0, 0)
        await second.die()

    run(tmp_path, scenario)


def test_an_engine_that_dies_before_it_has_said_anything_is_waited_out(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, mute, engine = Engine(tmp_path), Engine(tmp_path), Engine(tmp_path)
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


def test_it_knows_the_models_that_fail(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = Engine(tmp_path)
        await engine.start()
        await scheduler.hello()
        engine.connections[-1].send(Health(["m"]))
        await until(lambda: scheduler.suspects() == {"m"})
        assert scheduler.health_error() is None
        engine.connections[-1].send(Health([]))
        await until(lambda: not scheduler.suspects())
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_says_nothing_gets_no_more_until_it_does(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = Engine(tmp_path)
        await engine.start()
        await scheduler.hello()
        early = submitted(scheduler)
        await engine.requests(1)
        scheduler._silence.seconds = SILENT_S + 1
        assert "has said nothing for 4 s" in str(scheduler.health_error())
        away = list[tuple[int, int]]()
        scheduler._note_away = lambda requests, tokens: away.append((requests, tokens))
        scheduler._note_waiting()
        assert away[-1][0] == 1
        with pytest.raises(NotReadyError, match="has said nothing for 4 s"):
            await submitted(scheduler)
        engine.connections[-1].send(Health([]))
        await until(lambda: scheduler.health_error() is None)
        late = submitted(scheduler)
        for request in await engine.requests(2):
            engine.answer(request, 1)
        assert value(await early) == value(await late) == 1
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_reads_nothing_is_sent_no_more_than_it_may_hold(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = Engine(tmp_path)
        engine.hello = replace(engine.hello, running_tokens=20)
        await engine.start()
        await scheduler.hello()
        tasks = [submitted(scheduler, 30) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError) as refused:
            await submitted(scheduler, 1)
        assert (refused.value.queued_tokens, refused.value.max_queue_tokens) == (120, 120)
        for request in await engine.requests(4):
            engine.answer(request, 1)
        await asyncio.gather(*tasks)
        await engine.die()

    run(tmp_path, scenario)


def test_when_it_closes_who_waits_is_refused_and_so_is_who_comes(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = Engine(tmp_path)
        await engine.start()
        await scheduler.hello()
        waiting = submitted(scheduler)
        await asyncio.sleep(0)
        await scheduler.close()
        for task in (waiting, submitted(scheduler)):
            with pytest.raises(NotReadyError):
                await task
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_has_read_other_bundles_gets_nothing(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = Engine(tmp_path), Engine(tmp_path)
        await first.start()
        await scheduler.hello()
        early = submitted(scheduler)
        await first.requests(1)
        second.hello = hello(100, "v2")
        await first.die()
        await second.start()
        with pytest.raises(NotReadyError, match="bundles of m were changed while they were served"):
            await early
        with pytest.raises(NotReadyError, match="were changed"):  # at once: no engine will ever run it
            await submitted(scheduler)
        assert changed == [tmp_path] and second.submitted == []
        assert scheduler.health_error() is not None
        await second.die()

    run(tmp_path, scenario)
