"""A frontend refuses what an engine process cannot take: away, silent, full, changed or stopping."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bert.errors import ModelLeftOutError, ModelReplacedError, NotReadyError, QueueFullError
from service.scheduling.fair_queue import Lane
from service.workers.messages import (
    Health,
    Hello,
)
from service.workers.remote_scheduler import AWAY_S, LONG_AWAY_S, SILENT_S, RemoteScheduler
from tests.support.played_engine import MODEL, PlayedEngine, hello, run, submitted, until, value


def test_while_the_engine_is_away_no_more_wait_than_it_would_take(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path)
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


def test_while_the_engine_is_away_for_long_nothing_more_waits(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path)
        await first.start()
        await scheduler.hello()
        await first.die()
        await until(lambda: scheduler.health_error() is not None)
        early = submitted(scheduler)
        await asyncio.sleep(0)
        scheduler._away.seconds = LONG_AWAY_S + 1
        with pytest.raises(NotReadyError, match="the service has had no engine for 16 s; its log says why"):
            await submitted(scheduler)
        await second.start()
        (request,) = await second.requests(1)
        late = submitted(scheduler)
        second.answer(request, 7)
        second.answer((await second.requests(2))[1], 8)
        assert (value(await early), value(await late)) == (7, 8)
        await second.die()

    run(tmp_path, scenario)


def test_an_engine_that_takes_long_to_load_is_waited_for_longer(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
        scheduler._away.seconds = LONG_AWAY_S
        await engine.start()
        await scheduler.hello()
        await engine.die()
        await until(lambda: scheduler.health_error() is not None)
        scheduler._away.seconds = 1.9 * LONG_AWAY_S
        waiting = submitted(scheduler)
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        scheduler._away.seconds = 2.1 * LONG_AWAY_S
        with pytest.raises(NotReadyError):
            await submitted(scheduler)

    run(tmp_path, scenario)


def test_a_key_that_fills_the_engine_leaves_others_their_part(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine, flood, single = PlayedEngine(tmp_path), Lane("flood"), Lane("single", 3)
        await engine.start()
        await scheduler.hello()
        waiting = [submitted(scheduler, 50, flood), submitted(scheduler, 50, flood)]
        await asyncio.sleep(0)
        for tokens, lane in ((1, flood), (76, single)):
            with pytest.raises(QueueFullError):
                await submitted(scheduler, tokens, lane)
        waiting.append(submitted(scheduler, 75, single))
        for request in await engine.requests(3):
            engine.answer(request, 1)
        assert [value(await task) for task in waiting] == [1, 1, 1]
        lanes = [(message.lane, message.share) for message in engine.submitted]
        assert lanes == [("flood", 1.0), ("flood", 1.0), ("single", 3)]
        assert not scheduler._lanes
        await engine.die()

    run(tmp_path, scenario)


def test_it_knows_the_models_that_fail(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
        await engine.start()
        await scheduler.hello()
        engine.connections[-1].send(Health(["m"], {}))
        await until(lambda: scheduler.suspects() == {"m"})
        assert scheduler.health_error() is None
        engine.connections[-1].send(Health([], {}))
        await until(lambda: not scheduler.suspects())
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_says_nothing_gets_no_more_until_it_does(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
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
        engine.connections[-1].send(Health([], {}))
        await until(lambda: scheduler.health_error() is None)
        late = submitted(scheduler)
        for request in await engine.requests(2):
            engine.answer(request, 1)
        assert value(await early) == value(await late) == 1
        await engine.die()

    run(tmp_path, scenario)


def test_an_engine_that_reads_nothing_is_sent_no_more_than_it_may_hold(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
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
        engine = PlayedEngine(tmp_path)
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
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path)
        await first.start()
        await scheduler.hello()
        early = submitted(scheduler)
        await first.requests(1)
        second.hello = hello(100, "m@v2", "v2")
        await first.die()
        await second.start()
        for task in (early, submitted(scheduler)):  # at once: no engine will ever run it
            with pytest.raises(ModelReplacedError, match="model 'm' was replaced while"):
                await task
        assert second.submitted == [] and scheduler.health_error() is None
        await second.die()

    run(tmp_path, scenario)


def test_a_bundle_of_the_same_checkpoint_answers_what_was_read_for_the_one_before(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path)
        await first.start()
        await scheduler.hello()
        early = submitted(scheduler)
        await first.requests(1)
        second.hello = hello(100, "m@int8", "v1")
        await first.die()
        await second.start()
        await second.requests(1)
        late = submitted(scheduler)
        for request in await second.requests(2):
            assert request.model == "m@int8"
            second.answer(request, 1)
        assert value(await early) == value(await late) == 1
        await second.die()

    run(tmp_path, scenario)


def test_a_model_that_comes_back_with_another_hash_is_never_asked_with_the_old_tokens(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        first, second = PlayedEngine(tmp_path), PlayedEngine(tmp_path)
        await first.start()
        await scheduler.hello()
        second.hello = Hello(100, {}, {}, {}, left_out=[("m", "classification", "damaged")])
        early = submitted(scheduler)
        await first.die()
        await second.start()
        with pytest.raises(ModelLeftOutError):
            await early
        second.connections[-1].send(hello(100, "m@v2", "v2"))
        await until(lambda: scheduler._hello is not None and "m@v2" in scheduler._hello.tasks)
        with pytest.raises(ModelReplacedError):
            await submitted(scheduler)
        assert second.submitted == []
        await second.die()

    run(tmp_path, scenario)


def test_retry_after_of_a_full_engine_is_the_time_it_needs_for_the_excess(tmp_path: Path) -> None:
    async def scenario(scheduler: RemoteScheduler) -> None:
        engine = PlayedEngine(tmp_path)
        await engine.start()
        await scheduler.hello()
        engine.connections[-1].send(Health([], {MODEL: 8.0}))
        await until(lambda: bool(scheduler._health.tokens_per_s))
        waiting = submitted(scheduler, 100)
        await engine.requests(1)
        with pytest.raises(QueueFullError) as refused:
            await submitted(scheduler, 20)
        assert refused.value.retry_after_s == 20 / 8
        engine.answer(engine.submitted[0], 1)
        await waiting
        await engine.die()

    run(tmp_path, scenario)
