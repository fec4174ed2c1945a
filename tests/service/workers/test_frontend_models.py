"""The models of a frontend follow what its engine process says of them. The test plays the engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from bert.bundle import Bundle, read_bundle
from bert.errors import ModelLeftOutError
from service.engine.models import ID_DIGITS
from service.http import lifecycle
from service.http.lifecycle import Service
from service.metrics import Metrics
from service.settings import ServeSettings
from service.workers.messages import Health, Hello
from service.workers.remote_scheduler import connect_models
from tests.support.played_engine import PlayedEngine, until


def id_of(bundle: Bundle) -> str:
    return f"{bundle.manifest.name}@{bundle.manifest.sha256[:ID_DIGITS]}"


def hello_of(*folders: Path) -> Hello:
    """Return what an engine process says of tiny bundles."""
    bundles = [read_bundle(folder) for folder in folders]
    manifests = {id_of(bundle): bundle.manifest for bundle in bundles}
    return Hello(
        1_000,
        dict.fromkeys(manifests, 64),
        {name: manifest.task.task for name, manifest in manifests.items()},
        {name: manifest.sha256 for name, manifest in manifests.items()},
        bundles=[
            (
                str(bundle.folder),
                json.dumps(bundle.manifest.to_dict()),
                bundle.read("tokenizer.json"),
                "",
                b"",
                b"",
            )
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
    monkeypatch.setattr(lifecycle, "PROBE_EVERY_S", 0)

    async def scenario() -> None:
        engine = Engine(tmp_path, bundles / "mood")
        await engine.start()
        async with frontend(tmp_path) as service:
            engine.answers = False
            engine.connections[-1].send(Health([id_of(read_bundle(bundles / "mood"))], {}))
            await until(lambda: bool(service.loaded.scheduler.suspects()))
            service.probe_soon()
            await until(lambda: len(engine.submitted) > engine.answered)
            await engine.die()
            await asyncio.sleep(0.3)  # the probe has waited in vain
            assert not service.loaded.scheduler.suspects()
            service.probe_soon()
            successor = Engine(tmp_path, bundles / "mood")
            await successor.start()
            await until(lambda: service.loaded.scheduler.health_error() is None)
            assert service.why_model_not_ready(service.loaded.registry.models["mood"]) is None
            assert not successor.submitted  # there was nothing to probe
        await successor.die()

    asyncio.run(scenario())


def test_no_check_of_a_new_model_counts_if_its_engine_ends_meanwhile(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        engine = Engine(tmp_path, bundles / "mood")
        await engine.start()
        async with frontend(tmp_path) as service:
            monkeypatch.setattr(lifecycle, "WARM_UP_TIMEOUT_S", 0.2)
            engine.answers = False
            engine.connections[-1].send(hello_of(bundles / "mood", bundles / "names"))
            await until(lambda: len(engine.submitted) > engine.answered)
            assert "names" in service.loaded.registry.models  # nothing waits for the check
            await engine.die()
            await asyncio.sleep(0.3)  # the check has waited in vain
            successor = Engine(tmp_path, bundles / "mood", bundles / "names")
            await successor.start()
            await until(lambda: service.loaded.scheduler.health_error() is None)
            assert service.why_not_ready() is None
        await successor.die()

    asyncio.run(scenario())


def test_a_model_that_goes_while_it_is_checked_leaves_nothing_behind(bundles: Path, tmp_path: Path) -> None:
    def info(service: Service) -> dict[str, float]:
        (metric,) = service.metrics.model_info.collect()
        return {sample.labels["model"]: sample.value for sample in metric.samples}

    async def scenario() -> None:
        engine = Engine(tmp_path, bundles / "mood")
        await engine.start()
        async with frontend(tmp_path) as service:
            engine.answers = False
            engine.connections[-1].send(hello_of(bundles / "mood", bundles / "names"))
            await until(lambda: len(engine.submitted) > engine.answered)
            assert info(service) == {"mood": 1, "names": 1}
            engine.connections[-1].send(hello_of(bundles / "mood"))
            await asyncio.sleep(0.01)
            engine.answers = True
            await until(lambda: "names" not in service.loaded.registry.models)
            assert service.why_not_ready() is None
            assert info(service) == {"mood": 1, "names": 0}
        await engine.die()

    asyncio.run(scenario())


def test_a_change_that_cannot_be_taken_over_is_logged_and_the_next_is_followed(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    both = hello_of(bundles / "mood", bundles / "names")

    async def scenario() -> None:
        engine = Engine(tmp_path, bundles / "mood")
        await engine.start()
        async with frontend(tmp_path) as service:
            connection, announce = engine.connections[-1], service._announce
            folder, manifest, _, *others = both.bundles[1]
            damaged = cast(Any, (folder, manifest, b"{", *others))
            connection.send(replace(both, bundles=[both.bundles[0], damaged]))
            await until(lambda: "could not be read" in caplog.text)
            with monkeypatch.context() as broken:
                broken.setattr(service, "_announce", None)
                connection.send(both)
                await until(lambda: "could not be taken over" in caplog.text)
            assert service._announce == announce
            connection.send(hello_of(bundles / "mood"))
            await until(lambda: "names" not in service.loaded.registry.models)
            connection.send(both)
            await until(lambda: "names" in service.loaded.registry.models)
            assert service.why_not_ready() is None
        await engine.die()

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
