"""The engine process asks a suspected model on a GPU a sample text, and ends if that fails too."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bert.errors import EngineError
from bert.tokenizer import Encoding
from service.engine.models import Outputs
from service.engine.onnx_engine import OnnxEngine
from service.scheduling.scheduler import SUSPECT_AFTER
from service.workers.messages import (
    MAX_RETRIES,
    Done,
)
from tests.support.engine_service import Frontend, Service


@pytest.fixture
def service(tmp_path: Path, bundles: Path) -> Service:
    return Service(tmp_path, bundles / "mood")


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_process_whose_gpu_fails_whatever_it_is_given_ends(
    service: Service, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """A device error makes all later runs of the process fail; a CPU has no such state."""
    ended = list[int]()
    monkeypatch.setattr("service.workers.engine_process.BEAT_EVERY_S", 0.02)
    monkeypatch.setattr("service.workers.engine_process.os._exit", ended.append)

    def lost(_: OnnxEngine, __: Sequence[Encoding]) -> None:
        raise EngineError("an illegal memory access was encountered")

    async def scenario(frontend: Frontend) -> None:
        service.server._on_gpu = {service.model} if on_gpu else set()
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


def test_a_probe_waits_for_a_last_attempt_which_runs_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate, batches = OnnxEngine.run, threading.Event(), list[int]()

    def gated(engine: OnnxEngine, texts: Sequence[Encoding]) -> Outputs:
        batches.append(len(texts))
        assert gate.wait(120)
        return run(engine, texts)

    async def scenario(frontend: Frontend) -> None:
        service.server._on_gpu = {service.model}
        monkeypatch.setattr(OnnxEngine, "run", gated)
        frontend.connection.send(replace(service.request(1), attempts=MAX_RETRIES))
        while not batches:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(service.server._scheduler, "suspects", lambda: {service.model})
        probe = asyncio.create_task(service.server._probe_gpu())
        await asyncio.sleep(0.1)
        assert service.server._scheduler.queue.texts == 0, "nothing waits beside the last attempt"
        gate.set()
        assert isinstance(await frontend.answer(1), Done)
        await probe
        assert batches == [3, 1]

    service.run(scenario)


def test_a_probe_that_cannot_be_made_is_logged_and_heartbeats_go_on(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.workers.engine_process.BEAT_EVERY_S", 0.02)
    monkeypatch.setattr("service.workers.engine_process.sample_texts", lambda _: [])
    beats = list[float]()
    service.server._beat = beats.append

    async def scenario(_: Frontend) -> None:
        service.server._on_gpu = {service.model}
        monkeypatch.setattr(service.server._scheduler, "suspects", lambda: {service.model})
        while "the GPU could not be probed with mood" not in caplog.text:
            await asyncio.sleep(0.005)
        seen = len(beats)
        while len(beats) < seen + 3:
            await asyncio.sleep(0.005)

    service.run(scenario)


def test_a_worker_whose_heartbeat_fails_ends_with_the_reason(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.workers.engine_process.BEAT_EVERY_S", 0.02)

    async def scenario(_: Frontend) -> None:
        monkeypatch.setattr(service.server._scheduler, "stuck_after_s", lambda _: 1 / 0)
        await asyncio.sleep(0.1)

    with pytest.raises(ExceptionGroup) as failed:
        service.run(scenario)
    assert failed.group_contains(ZeroDivisionError)
