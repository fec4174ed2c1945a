"""The engine process's side of a connection, with a real engine."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.errors import DeadlineExceededError, EngineError, ModelReplacedError, QueueFullError
from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.engine.onnx_engine import OnnxEngine
from service.workers.messages import (
    MAX_RETRIES,
    Cancel,
    Done,
    Failed,
    Health,
    Hello,
    Started,
)
from tests.support.engine_service import Frontend, Service


@pytest.fixture
def service(tmp_path: Path, bundles: Path) -> Service:
    return Service(tmp_path, bundles / "mood")


def outputs(texts: list[Encoding], bundle: Path) -> list[list[list[float]]]:
    return [output.tolist() for output in OnnxEngine(read_bundle(bundle), 1).run(texts).texts]


def test_it_says_what_it_has_loaded_and_answers_with_the_engines_outputs(
    service: Service, bundles: Path
) -> None:
    async def scenario(frontend: Frontend) -> None:
        frontend.connection.send(service.request(5))
        answer = await frontend.answer(5)
        assert isinstance(answer, Done)
        got = [output.tolist() for output in answer.result().outputs]
        assert np.allclose(np.concatenate(got), np.concatenate(outputs(service.texts, bundles / "mood")))
        hello = frontend.got[0]
        assert (
            isinstance(hello, Hello) and hello.budgets == {service.model: 128} and hello.max_tokens >= 16_384
        )

    service.run(scenario)


def test_every_frontend_hears_how_it_goes(service: Service) -> None:
    async def scenario(frontend: Frontend) -> None:
        async with service.connected() as other:
            while not all(any(isinstance(m, Health) for m in each.got) for each in (frontend, other)):
                await asyncio.sleep(0.01)
            health = next(m for m in other.got if isinstance(m, Health))
            assert health.suspects == [] and health.tokens_per_s[service.model] > 0

    service.run(scenario)


def test_requests_that_are_cancelled_at_once_leave_nothing_and_the_next_is_answered(service: Service) -> None:
    async def scenario(frontend: Frontend) -> None:
        for key in range(1, 100):
            frontend.connection.send(service.request(key))
            frontend.connection.send(Cancel(key))
            frontend.connection.send(Cancel(key))  # and again: it does nothing
        frontend.connection.send(service.request(100))
        assert isinstance(await frontend.answer(100), Done)
        assert not [message for message in frontend.got if isinstance(message, Failed)]

    service.run(scenario)


def test_the_requests_of_a_frontend_that_is_gone_are_forgotten(service: Service) -> None:
    async def scenario(frontend: Frontend) -> None:
        async with service.connected() as other:
            for key in range(1, 200):
                other.connection.send(service.request(key))
        frontend.connection.send(service.request(200))
        assert isinstance(await frontend.answer(200), Done)
        while len(service.server._tasks) > 1:
            await asyncio.sleep(0.001)

    service.run(scenario)


def test_an_error_is_answered_and_not_only_logged(service: Service) -> None:
    async def scenario(frontend: Frontend) -> None:
        frontend.connection.send(service.request(1, model="nope"))
        assert isinstance(await frontend.answer(1), ModelReplacedError)
        frontend.connection.send(service.request(2, deadline=time.monotonic() - 1))
        assert isinstance(await frontend.answer(2), DeadlineExceededError)
        frontend.connection.send(Health([], {}))  # nothing that a frontend says
        frontend.connection.send(service.request(3))
        assert isinstance(await frontend.answer(3), Done)

    service.run(scenario)


def test_requests_that_a_dead_engine_had_admitted_are_answered_however_full_the_queue(
    tmp_path: Path, bundles: Path
) -> None:
    bound, many = 1_000, 200
    service = Service(tmp_path, bundles / "mood", bound)
    assert many * sum(map(len, service.texts)) > 2 * bound

    async def scenario(frontend: Frontend) -> None:
        for key in range(many):
            frontend.connection.send(replace(service.request(key), attempts=1))
        frontend.connection.send(service.request(many))
        answers = [await frontend.answer(key) for key in range(many)]
        assert all(isinstance(answer, Done) for answer in answers)
        assert isinstance(await frontend.answer(many), QueueFullError)

    service.run(scenario)


def test_a_last_attempt_runs_alone_and_is_announced(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate, batches = OnnxEngine.run, threading.Event(), list[int]()

    def gated(engine: OnnxEngine, texts: Sequence[Encoding]) -> Outputs:
        batches.append(len(texts))
        assert gate.wait(120)
        return run(engine, texts)

    async def scenario(frontend: Frontend) -> None:
        monkeypatch.setattr(OnnxEngine, "run", gated)
        early, *last, late = [service.request(key) for key in range(1, 6)]
        frontend.connection.send(early)
        for request in last:
            frontend.connection.send(replace(request, attempts=MAX_RETRIES))
        frontend.connection.send(late)
        frontend.connection.send(Cancel(4))
        await asyncio.sleep(0.1)
        assert batches == [3]
        gate.set()
        for key in (1, 2, 3, 5):
            assert isinstance(await frontend.answer(key), Done)
        got = [(type(m), m.key) for m in frontend.got if isinstance(m, Started | Done)]
        assert got == [(Done, 1), (Started, 2), (Done, 2), (Started, 3), (Done, 3), (Done, 5)]
        assert batches == [3] * 4

    service.run(scenario)


def test_a_last_attempt_waits_for_a_batch_whose_request_was_cancelled(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate = OnnxEngine.run, threading.Event()

    def gated(engine: OnnxEngine, texts: Sequence[Encoding]) -> Outputs:
        assert gate.wait(120)
        return run(engine, texts)

    async def scenario(frontend: Frontend) -> None:
        monkeypatch.setattr(OnnxEngine, "run", gated)
        frontend.connection.send(service.request(1))
        while service.server._scheduler.oldest() is None:
            await asyncio.sleep(0.001)
        frontend.connection.send(Cancel(1))
        frontend.connection.send(replace(service.request(2), attempts=MAX_RETRIES))
        await asyncio.sleep(0.1)
        assert Started(2) not in frontend.got
        gate.set()
        assert isinstance(await frontend.answer(2), Done)

    service.run(scenario)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_batch_that_hangs_ends_the_process_and_its_only_request(
    service: Service, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """A request alone in the batch is the cause and is not run again; of several any may be."""
    run, gate, ended = OnnxEngine.run, threading.Event(), list[int]()
    monkeypatch.setattr("service.workers.engine_process.BEAT_EVERY_S", 0.02)
    monkeypatch.setattr("service.workers.engine_process.os._exit", ended.append)

    def gated(engine: OnnxEngine, texts: Sequence[Encoding]) -> Outputs:
        assert gate.wait(120)
        return run(engine, texts)

    async def scenario(frontend: Frontend) -> None:
        monkeypatch.setattr(OnnxEngine, "run", gated)
        monkeypatch.setattr(service.server._scheduler, "stuck_after_s", lambda _: 0.1)
        for key in range(requests):
            frontend.connection.send(service.request(key))
        while not ended:
            await asyncio.sleep(0.005)
        assert any(isinstance(m, Failed) for m in frontend.got) == (requests == 1)
        gate.set()
        for key in range(requests):
            assert isinstance(await frontend.answer(key), EngineError if requests == 1 else Done)

    service.run(scenario)
