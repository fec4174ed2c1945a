"""The engine process's side of a connection, with a real engine."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.errors import DeadlineExceededError, EngineError, QueueFullError, ServiceError
from bert.tokenizer import Encoding, Tokenizer
from service.engine.engine_protocol import Outputs
from service.engine.onnx_engine import OnnxEngine
from service.scheduling.scheduler import SUSPECT_AFTER
from service.settings import ServeSettings
from service.workers.connection import Connection
from service.workers.engine_worker import EngineWorker
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
from service.workers.runtime_dir import SOCKET

NEVER = float("inf")


class Frontend:
    """A connection to the engine process, and what came."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.connection = Connection(lambda _, message: self.got.append(message), lambda _: None)

    async def answer(self, key: int) -> Done | ServiceError:
        """Wait for the answer to a request."""
        answers: list[Done | Failed] = []
        while not answers:
            await asyncio.sleep(0.001)
            answers = [m for m in self.got if isinstance(m, Done | Failed) and m.key == key]
        (answer,) = answers
        return answer if isinstance(answer, Done) else answer.error()


class Service:
    """An engine server in this process."""

    def __init__(self, folder: Path, bundle: Path, max_queue_tokens: int | None = None) -> None:
        self.folder = folder
        settings = ServeSettings(
            bundles=[bundle], engine_slots=1, batch_tokens=128, max_queue_tokens=max_queue_tokens
        )
        self.server = EngineWorker(settings, folder)
        tokenizer = Tokenizer.load(read_bundle(bundle).tokenizer_path)
        self.texts = [
            tokenizer.single(text) for text in tokenizer.pieces(["a film", "dull", "paris is long"])
        ]

    def request(self, key: int, *, model: str = "mood", deadline: float = NEVER) -> Submit:
        return Submit.of(key, model, "classification", deadline, self.texts)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Frontend]:
        frontend = Frontend()
        loop, path = asyncio.get_running_loop(), str(self.folder / SOCKET)
        await loop.create_unix_connection(lambda: frontend.connection, path)
        try:
            yield frontend
        finally:
            frontend.connection.close()

    def run(self, scenario: Callable[[Frontend], Awaitable[None]]) -> None:
        """Start it, connect, and end it after the scenario; nothing of a request may be left."""

        async def main() -> None:
            ended = asyncio.Event()
            running = asyncio.create_task(self.server.run(ended))
            while not (self.folder / SOCKET).exists():
                await asyncio.sleep(0.005)
            async with asyncio.timeout(20), self.connected() as frontend:
                await scenario(frontend)
                while any(self.server._tasks.values()):
                    await asyncio.sleep(0.001)
            ended.set()
            await running

        asyncio.run(main())


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
        assert isinstance(hello, Hello) and hello.budgets == {"mood": 128} and hello.max_tokens >= 16_384

    service.run(scenario)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_process_whose_gpu_fails_whatever_it_is_given_ends(
    service: Service, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """After an error on the device all that follows fails in this process; a CPU has no such state."""
    ended = list[int]()
    monkeypatch.setattr("service.workers.engine_worker.BEAT_EVERY_S", 0.02)
    monkeypatch.setattr("service.workers.engine_worker.os._exit", ended.append)

    def lost(_: OnnxEngine, __: Sequence[Encoding]) -> None:
        raise EngineError("an illegal memory access was encountered")

    async def scenario(frontend: Frontend) -> None:
        service.server._on_gpu = {"mood"} if on_gpu else set()
        monkeypatch.setattr(OnnxEngine, "run", lost)
        for key in range(SUSPECT_AFTER):
            assert not ended
            frontend.connection.send(service.request(key))
            assert isinstance(await frontend.answer(key), EngineError)
        while on_gpu and not ended:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        assert (
            bool(ended) == on_gpu
        )  # what replaces os._exit stays to the end: another probe may be on its way

    service.run(scenario)


def test_every_frontend_hears_how_it_goes(service: Service) -> None:
    async def scenario(frontend: Frontend) -> None:
        async with service.connected() as other:
            while not all(any(isinstance(m, Health) for m in each.got) for each in (frontend, other)):
                await asyncio.sleep(0.01)
            assert next(m for m in other.got if isinstance(m, Health)) == Health([])

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
        assert isinstance(await frontend.answer(1), EngineError)
        frontend.connection.send(service.request(2, deadline=time.monotonic() - 1))
        assert isinstance(await frontend.answer(2), DeadlineExceededError)
        frontend.connection.send(Health([]))  # nothing that a frontend says
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
        assert gate.wait(10)
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
        assert gate.wait(10)
        return run(engine, texts)

    async def scenario(frontend: Frontend) -> None:
        monkeypatch.setattr(OnnxEngine, "run", gated)
        frontend.connection.send(service.request(1))
        while service.server._scheduler.oldest_start() is None:
            await asyncio.sleep(0.001)
        frontend.connection.send(Cancel(1))
        frontend.connection.send(replace(service.request(2), attempts=MAX_RETRIES))
        await asyncio.sleep(0.1)
        assert Started(2) not in frontend.got
        gate.set()
        assert isinstance(await frontend.answer(2), Done)

    service.run(scenario)
