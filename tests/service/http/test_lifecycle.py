"""A process accepts connections at once, but one that takes another's place accepts them with its models."""

import asyncio
import contextlib

import pytest

from bert.errors import ServiceError
from service.http import lifecycle
from service.http.lifecycle import Service
from service.metrics import Metrics
from service.scheduling.scheduler_protocol import ServedModels
from service.settings import ServeSettings


class Loading:
    """A service whose models are loading until `end` is set."""

    def __init__(self, *, is_successor: bool) -> None:
        self.end, self.accepts = asyncio.Event(), asyncio.Event()
        self.service = Service(ServeSettings(), self.open_models)
        self.service.is_successor = is_successor
        self.running = asyncio.create_task(self.run())

    async def open_models(self, settings: ServeSettings, metrics: Metrics) -> ServedModels:
        await self.end.wait()
        raise ServiceError("the test has no models")

    async def run(self) -> None:
        async with self.service.lifespan(prepare=lambda: None):
            self.accepts.set()

    async def accepts_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.accepts.wait(), seconds)
        return self.accepts.is_set()


def test_the_first_process_accepts_before_it_has_models() -> None:
    async def accepts() -> bool:
        return await Loading(is_successor=False).accepts_within(60)

    assert asyncio.run(accepts())


def test_a_successor_accepts_when_the_load_has_ended() -> None:
    async def accepts() -> tuple[bool, bool]:
        loading = Loading(is_successor=True)
        before = await loading.accepts_within(0.3)
        loading.end.set()
        return before, await loading.accepts_within(60)

    assert asyncio.run(accepts()) == (False, True)


def test_a_successor_does_not_wait_for_models_when_it_is_to_stop() -> None:
    async def accepts() -> tuple[bool, bool]:
        loading = Loading(is_successor=True)
        before = await loading.accepts_within(0.3)
        loading.service.drain()
        return before, await loading.accepts_within(60)

    assert asyncio.run(accepts()) == (False, True)


def test_a_successor_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "ACCEPT_AFTER_S", 0.2)

    async def accepts() -> bool:
        return await Loading(is_successor=True).accepts_within(60)

    assert asyncio.run(accepts())
