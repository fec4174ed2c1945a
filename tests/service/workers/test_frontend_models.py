"""The models of a frontend follow what its engine process says of them. The test plays the engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bert.bundle import read_bundle
from bert.errors import ModelLeftOutError
from bert.manifest import SHA256
from service.http import lifecycle
from service.http.lifecycle import Service
from service.metrics import Metrics
from service.settings import ServeSettings
from service.workers.messages import Health, Hello
from service.workers.remote_scheduler import connect_models
from tests.support.played_engine import PlayedEngine, until


def hello_of(*folders: Path) -> Hello:
    """Return what an engine process says of tiny bundles."""
    bundles = [read_bundle(folder) for folder in folders]
    manifests = [bundle.manifest for bundle in bundles]
    return Hello(
        1_000,
        {manifest.name: 64 for manifest in manifests},
        {manifest.name: manifest.task.task for manifest in manifests},
        {manifest.name: str(manifest.to_dict()[SHA256]) for manifest in manifests},
        bundles=[
            (str(bundle.folder), json.dumps(bundle.manifest.to_dict()), bundle.read("tokenizer.json"), "")
            for bundle in bundles
        ],
    )


class Engine(PlayedEngine):
    """An engine process that answers warm-up texts, unless it is told not to."""

    def __init__(self, folder: Path, *bundles: Path) -> None:
        super().__init__(folder)
        self.hello, self.answered, self.answers = hello_of(*bundles), 0, True
        self.answering = asyncio.create_task(self.answer_all())

    async def answer_all(self) -> None:
        while True:
            await until(lambda: self.answers and len(self.submitted) > self.answered)
            self.answer(self.submitted[self.answered], 1)
            self.answered += 1

    async def die(self) -> None:
        self.answering.cancel()
        await super().die()


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without the gauges that only a service of several processes has."""
    monkeypatch.setattr(Metrics, "note_engine_away", lambda *_: None)


@asynccontextmanager
async def frontend(folder: Path) -> AsyncIterator[Service]:
    """Be a frontend with the models of the engine that is played in this folder."""
    open_models = partial(connect_models, runtime_dir=folder, beat=lambda _: None)
    service = Service(ServeSettings(), open_models)
    async with asyncio.timeout(30), service.lifespan(prepare=lambda: None):
        await until(lambda: service.why_not_ready() is None)
        yield service
    await asyncio.sleep(0.01)  # for what is closing


def test_no_probe_counts_while_the_engine_is_away(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PROBE_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        engine = Engine(tmp_path, bundles / "mood")
        await engine.start()
        async with frontend(tmp_path) as service:
            engine.answers = False
            engine.connections[-1].send(Health(["mood"], {}))
            await until(lambda: bool(service.loaded.scheduler.suspects()))
            service.probe_soon()
            during = service._probe
            assert during is not None
            await until(lambda: len(engine.submitted) > engine.answered)
            await engine.die()
            await during
            assert not service.loaded.scheduler.suspects()
            service._last_probe = -1e9
            service.probe_soon()
            assert service._probe is during  # there is nothing to probe
            successor = Engine(tmp_path, bundles / "mood")
            await successor.start()
            await until(lambda: service.why_model_not_ready("mood") is None)
        await successor.die()

    asyncio.run(scenario())


def test_only_requests_for_a_model_that_the_next_engine_lacks_are_refused(
    bundles: Path, tmp_path: Path
) -> None:
    both = (bundles / "mood", bundles / "names")

    async def scenario() -> None:
        engine = Engine(tmp_path, *both)
        await engine.start()
        async with frontend(tmp_path) as service:
            mood = service.loaded.registry.models["mood"]
            engine.answers = False
            lost, kept = [
                asyncio.create_task(service.warm_up(service.loaded.registry.models[name], 60))
                for name in ("mood", "names")
            ]
            await until(lambda: len(engine.submitted) == engine.answered + 2)
            await engine.die()
            successor = Engine(tmp_path, bundles / "names")
            successor.hello = replace(successor.hello, left_out=[("mood", "classification", "damaged")])
            await successor.start()
            with pytest.raises(ModelLeftOutError):
                await lost
            await kept
            await until(lambda: "mood" not in service.loaded.registry.models)
            assert [each.reason for each in service.loaded.registry.left_out] == ["damaged"]
            with pytest.raises(ModelLeftOutError):  # one that was tokenised meanwhile
                await service.warm_up(mood, 60)
            names = service.loaded.registry.models["names"]
            successor.hello = hello_of(*both)
            successor.connections[-1].send(successor.hello)
            await until(lambda: "mood" in service.loaded.registry.models)
            assert service.loaded.registry.models["names"] is names  # its tokenizer is not read again
            await service.warm_up(mood, 60)
        await successor.die()

    asyncio.run(scenario())
