"""A batch that has the engine to itself may take several slots."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bert.tokenizer import Encoding
from service.engine.models import Engine, Outputs
from service.http.lifecycle import Service
from service.scheduling.fair_queue import FairQueue, Throughput
from service.scheduling.scheduler import MultiSlotEngine, Scheduler
from service.settings import ServeSettings
from service.workers.open_models import open_models


@dataclass
class Recorder:
    """Notes each batch's tokens under its own name, and waits for the gate."""

    name: str
    ran: list[tuple[str, int]]
    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1000))

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.ran.append((self.name, sum(len(encoding) for encoding in encodings)))
        assert self.gate.acquire(timeout=10)
        return Outputs([np.zeros((1, 1), np.float32) for _ in encodings], 0.0)


def text(tokens: int) -> Encoding:
    ids = np.zeros(tokens, np.int32)
    return Encoding(ids, ids, np.zeros((tokens, 2), np.int32), ids, ids)


class Bench:
    """A scheduler of two slots whose model has a wide engine for 50 tokens and more."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.gate = threading.Semaphore(0)
        self.speed = Throughput(0.0, 1e-3, 1000, 2)
        queue = FairQueue(10_000, {"m": 1000}, {"m": self.speed})
        narrow, wide = (Recorder(name, self.ran, self.gate) for name in ("narrow", "wide"))
        self.scheduler = Scheduler({"m": narrow}, queue, 2, multi_slot={"m": MultiSlotEngine(wide, 2, 50)})

    async def submit(self, *tokens: int) -> "asyncio.Task[object]":
        task = asyncio.create_task(self.scheduler.submit("m", [text(count) for count in tokens]))
        await asyncio.sleep(0.01)
        return task

    async def finish(self, *tasks: "asyncio.Task[object]") -> None:
        self.gate.release(100)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        await self.scheduler.close()


def test_a_lone_text_takes_all_slots_and_who_comes_meanwhile_waits_for_them() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.submit(60)
        second = await bench.submit(60)
        assert bench.ran == [("wide", 60)], "no more threads are busy than there are cores"
        bench.gate.release(1)
        await first
        await bench.finish(second)
        assert bench.ran == [("wide", 60), ("wide", 60)]

    asyncio.run(scenario())


@pytest.mark.parametrize("tokens", [(60, 60), (200, 10)])
def test_texts_that_are_not_alone_run_side_by_side(tokens: tuple[int, ...]) -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.finish(await bench.submit(*tokens))
        assert sorted(bench.ran) == sorted(("narrow", count) for count in tokens)

    asyncio.run(scenario())


def test_a_short_text_takes_one_slot_and_the_next_the_other() -> None:
    async def scenario() -> None:
        bench = Bench()
        short, long = await bench.submit(49), await bench.submit(60)
        assert bench.ran == [("narrow", 49), ("narrow", 60)]
        await bench.finish(short, long)

    asyncio.run(scenario())


def test_throughput_is_not_learned_from_a_batch_on_several_slots() -> None:
    async def scenario() -> None:
        bench = Bench()
        before = bench.speed.tokens_per_s
        await bench.finish(await bench.submit(60))
        assert bench.ran == [("wide", 60)] and bench.speed.tokens_per_s == before

    asyncio.run(scenario())


def test_sessions_that_are_not_worth_it_do_not_stay_in_memory(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[Engine]] = []

    def never(narrow: Engine, wide: Engine, max_tokens: int, slots: int) -> None:
        opened.append(weakref.ref(wide))

    monkeypatch.setattr("service.workers.open_models.usable_cores", lambda: 2)
    monkeypatch.setattr("service.engine.measure.find_multi_slot_tokens", never)

    async def scenario() -> None:
        service = Service(ServeSettings(bundles=[bundles / "mood"], keep_tuning=False), open_models)
        await service.load()
        gc.collect()
        assert len(opened) == 1 and opened[0]() is None
        await service.close()

    asyncio.run(scenario())
