"""A model by name is served in float32 at once, and in 8 bits when a child has exported it in the background."""

import asyncio
import os
import re
import resource
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bert.bundle import read_bundle
from bert.files import atomic_dir
from model_export.cli import main as bert_export
from service.engine.sample_texts import sample_texts
from service.exports import export_process
from service.exports.better_exports import BetterExports
from service.exports.export_cache import FIRST, cache_of
from service.exports.named_model import NamedModel
from service.exports.prepare import prepare
from service.exports.progress import progress_file, read_progress
from service.metrics import Metrics
from service.scheduling.scheduler import Scheduler
from service.settings import ServeSettings
from service.workers.open_models import open_models
from tests.support.checkpoints import SPECS, write_checkpoint
from tests.support.fleet import Fleet, fleet, is_alive, kill, soon

TEXT = {"text": "the soup was cold"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    write_checkpoint(folder, SPECS["classification"])
    return folder


@pytest.fixture(scope="module")
def int8(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle in 8 bits, which `auto` would not take of so small a model."""
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    assert bert_export([f"--checkpoint={checkpoint}", f"--out={folder}", "--precision=int8"]) == 0
    return folder


@pytest.fixture(scope="module")
def begun(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the float32 bundle that services begin with."""
    cache = tmp_path_factory.mktemp("begun")
    prepare(settings(cache, checkpoint), answer_first=True)
    return cache


@pytest.fixture
def cache(begun: Path, tmp_path: Path) -> Path:
    """A cache of a test's own: the folder of the float32 bundle is a link to it."""
    (model,) = begun.iterdir()
    (key,) = (folder for folder in model.iterdir() if folder.is_dir())
    (tmp_path / "cache" / model.name).mkdir(parents=True)
    (tmp_path / "cache" / model.name / key.name).symlink_to(key)
    return tmp_path / "cache"


@pytest.fixture
def at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give children the usual priority: beside other tests those of the lowest would take minutes."""
    usual = export_process._CHILD.replace("{in_background!r}", "False")
    monkeypatch.setattr(export_process, "_CHILD", usual)


def settings(cache: Path, checkpoint: Path) -> ServeSettings:
    return ServeSettings(model=[str(checkpoint)], model_cache=cache)


def place_of(cache: Path, checkpoint: Path) -> Path:
    """Return the folder that the finished bundle will have."""
    exports, model = cache_of(settings(cache, checkpoint)), NamedModel.parse(str(checkpoint))
    commit = exports.commit(model)
    assert commit is not None
    return exports.bundle(model, commit)


def put(bundle: Path, place: Path) -> None:
    """Put a bundle into its place at once, as an export does."""
    with atomic_dir(place) as aside:
        for file in bundle.iterdir():
            (aside / file.name).write_bytes(file.read_bytes())


def exporting(pid: int) -> list[int]:
    """Return the children of a process that export in the background."""
    tasks = Path(f"/proc/{pid}/task").iterdir()  # a child is its thread's
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [
        int(child) for child in children if b"model_export.cli" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


@dataclass
class Loaded:
    """A service of which only its state is known."""

    loaded: bool = True
    stopping: bool = False

    def is_loaded(self) -> bool:
        return self.loaded

    def is_stopping(self) -> bool:
        return self.stopping


@contextmanager
def exports(cache: Path, checkpoint: Path) -> Iterator[BetterExports]:
    """Export in the background of this process until the block ends."""
    begun = prepare(settings(cache, checkpoint), answer_first=True)
    assert list(begun.better_bundles.values()) == [place_of(cache, checkpoint)]
    with BetterExports(begun, Loaded()) as running:
        yield running


def child_of_this_process() -> int:
    found = list[int]()

    def is_there() -> bool:
        found[:] = exporting(os.getpid())
        return bool(found)

    soon(is_there)
    return found[0]


@pytest.mark.usefixtures("at_full_speed")
def test_float32_is_exported_first_and_the_finished_bundle_is_taken_at_the_next_start(
    checkpoint: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = prepare(settings(cache, checkpoint), answer_first=True)
    (first,) = begun.bundles
    place = place_of(cache, checkpoint)
    assert f"-{FIRST}-" in first.parent.name and read_bundle(first).manifest.precision == "fp32"
    assert begun.better_bundles == {first: place}
    with exports(cache, checkpoint):
        soon(lambda: place.exists() and not progress_file(place).exists())
    assert read_bundle(place).manifest.choice["asked"] == "auto"
    finished = prepare(settings(cache, checkpoint), answer_first=True)
    assert (finished.bundles, finished.better_bundles) == ([place], {})
    assert prepare(settings(cache, checkpoint)).bundles == [place]
    # The child's lines are in the log. A handler of another test may complain there that its stream is closed.
    assert not re.findall(r"^  building the", capfd.readouterr().err, re.MULTILINE)


def test_who_cannot_begin_with_another_bundle_waits_for_the_finished_one(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = list[str]()
    monkeypatch.setattr(
        "service.exports.export_process.export",
        lambda model, commit, out, precision, lock, **_: exported.append(precision),
    )
    prepare(settings(cache, checkpoint))
    monkeypatch.setattr("service.exports.prepare._has_cuda", lambda: True)
    prepare(settings(cache, checkpoint), answer_first=True)
    fp32 = settings(cache, checkpoint).model_copy(update={"model_precision": "fp32"})
    assert prepare(fp32, answer_first=True).better_bundles == {}
    assert exported == ["auto", "auto", "fp32"]


def fill_the_disk(child: int) -> None:
    resource.prlimit(child, resource.RLIMIT_FSIZE, (1024, 1024))


@pytest.mark.usefixtures("at_full_speed", "nothing_compiled")
@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (kill, "was ended by SIGKILL: the machine may be out of memory"),
        (fill_the_disk, "cannot be written: File too large"),
    ],
)
def test_a_child_that_is_killed_or_finds_the_disk_full_is_told_and_tried_at_the_next_start(
    fail: Callable[[int], None],
    reason: str,
    checkpoint: Path,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = place_of(cache, checkpoint)
    with exports(cache, checkpoint):
        fail(child_of_this_process())
        soon(lambda: "error" in (read_progress(place) or {}))
        time.sleep(0.5)
        assert exporting(os.getpid()) == []
    assert reason in (read_progress(place) or {})["error"]
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert line.startswith("tiny goes on in float32, as its export in 8 bits failed: ") and reason in line
    with exports(cache, checkpoint):
        child_of_this_process()


def test_a_checkpoint_that_has_changed_since_the_start_is_told(
    checkpoint: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changing = shutil.copytree(checkpoint, tmp_path / "changing")
    begun = prepare(settings(cache, changing), answer_first=True)
    (place,) = begun.better_bundles.values()
    (changing / "vocab.txt").touch()
    with BetterExports(begun, Loaded()):
        soon(lambda: "error" in (read_progress(place) or {}))
    assert f"{changing} is not what it was at the start; start the service again" in caplog.text


@pytest.mark.usefixtures("at_full_speed")
def test_what_an_earlier_service_left_is_not_shown(checkpoint: Path, cache: Path) -> None:
    file = progress_file(place_of(cache, checkpoint))
    file.parent.mkdir(parents=True)
    file.write_text('{"error": "of yesterday"}')
    begun = prepare(settings(cache, checkpoint), answer_first=True)
    with BetterExports(begun, Loaded(False)):
        soon(lambda: not file.exists())


@pytest.mark.usefixtures("at_full_speed")
def test_a_second_start_begins_at_once_and_shares_the_export(
    checkpoint: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    place = place_of(cache, checkpoint)
    with exports(cache, checkpoint):
        child_of_this_process()
        with exports(cache, checkpoint) as second:
            soon(lambda: not second._thread.is_alive())
            assert place.exists()
    lines = [record.getMessage() for record in caplog.records]
    assert sum("is exported in 8 bits to" in line for line in lines) == 1
    assert "tiny is being exported by another process, which is waited for" in lines


def test_the_end_of_the_service_ends_the_child_and_leaves_nothing_half(
    checkpoint: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of(cache, checkpoint)
    with exports(cache, checkpoint):
        child = child_of_this_process()
        soon(lambda: Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n")
        assert os.sched_getscheduler(child) == os.SCHED_IDLE
        with exports(cache, checkpoint):  # one that waits ends too
            pass
    assert not is_alive(child)
    assert list(place.parent.iterdir()) == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@dataclass
class Asking:
    """A client that asks over and over, and what it was answered."""

    running: Fleet
    statuses: set[int] = field(default_factory=set)
    scores: list[float] = field(default_factory=list)
    """Score of each answer that differs from the one before."""

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                reply = self.running.post("/classify", TEXT)
                self.statuses.add(reply.status)
                score = reply.json["results"][0]["score"]
                if not self.scores or self.scores[-1] != score:
                    self.scores.append(score)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("frontends", [0, 1])
def test_the_finished_bundle_is_swapped_in_and_no_request_fails(
    frontends: int, checkpoint: Path, cache: Path, int8: Path
) -> None:
    place = place_of(cache, checkpoint)
    exports = cache_of(settings(cache, checkpoint))
    arguments = ("--model", str(checkpoint), "--model-cache", str(cache))
    # The lock is another service's, whose child exports.
    with exports.lock(NamedModel.parse(str(checkpoint))), fleet(*arguments, frontends=frontends) as running:
        processes = running.children()
        asking = Asking(running)
        with asking.all_the_time():
            (model,) = running.get("/models").json["models"]
            assert (model["precision"], model["export"]) == ("fp32", None)
            place.parent.mkdir()
            progress_file(place).write_text('{"step": "rounding", "done": 0.25, "seconds_left": 7.5}')
            (model,) = running.get("/models").json["models"]
            assert model["export"] == {"step": "rounding", "done": 0.25, "seconds_left": 7.5, "error": None}
            put(int8, place)
            soon(lambda: running.get("/models").json["models"][0]["precision"] == "int8")
            time.sleep(0.5)
        (model,) = running.get("/models").json["models"]
        assert model["export"] is None and model["default"] and model["ready"]
        assert asking.statuses == {200} and len(set(asking.scores)) == 2
        assert running.metric("bert_model_info", precision="int8") == 1
        assert running.metric("bert_model_info", precision="fp32") == 0
        assert running.children() == processes
        if frontends:  # a new engine begins with float32 again, and the frontends take that
            kill(running.engine)
            soon(lambda: running.readiness()[0] == 200)
            with asking.all_the_time():
                soon(lambda: running.get("/models").json["models"][0]["precision"] == "int8")
            assert asking.statuses == {200} and running.frontends == processes[1:]


async def swap(begun: ServeSettings, place: Path, bundles: list[Path]) -> list[str]:
    """Put one bundle after another into the place; return the precision that is served after each."""
    served = await open_models(begun, Metrics())
    scheduler, changes, precisions = served.scheduler, served.changes, list[str]()
    assert isinstance(scheduler, Scheduler) and changes is not None
    model = served.registry.models["tiny"].id
    await scheduler.submit(model, sample_texts(16))
    first = weakref.ref(scheduler._engines[model])
    del served
    for bundle in bundles:
        put(bundle, place)
        tiny = (await anext(changes)).registry.models["tiny"]
        precisions.append(tiny.bundle.manifest.precision)
        await scheduler.submit(tiny.id, sample_texts(16))
    none = asyncio.ensure_future(anext(changes))
    async with asyncio.timeout(60):  # what was replaced is let go, and its memory is free
        while first() is not None:
            await asyncio.sleep(0.05)
    assert not none.done()
    none.cancel()
    await asyncio.wait([none])
    await scheduler.close()
    return precisions


def test_a_bundle_that_is_damaged_or_of_another_checkpoint_does_not_replace_the_running_one(
    checkpoint: Path,
    cache: Path,
    int8: Path,
    bundles: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = prepare(settings(cache, checkpoint), answer_first=True)
    damaged = shutil.copytree(int8, tmp_path / "damaged")
    (damaged / "model.onnx").write_bytes(b"no graph")
    wrong = [damaged, bundles / "mood"]
    assert asyncio.run(swap(begun, place_of(cache, checkpoint), [*wrong, int8])) == ["fp32", "fp32", "int8"]
    reasons = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ["the file was changed" in reasons[0], "is of another checkpoint" in reasons[1]] == [True, True]
    assert "Error(" not in "".join(reasons), "a sentence, and no Python"


def test_a_finished_bundle_in_float32_is_told_and_changes_nothing(
    checkpoint: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    begun = prepare(settings(cache, checkpoint), answer_first=True)

    async def served_after() -> list[Path]:
        served = await open_models(begun, Metrics())
        assert served.changes is not None
        put(begun.bundles[0], place_of(cache, checkpoint))
        after = (await anext(served.changes)).registry.models["tiny"].bundle.folder
        await served.scheduler.close()
        return [after]

    assert asyncio.run(served_after()) == begun.bundles
    (told,) = (record for record in caplog.records if "model tiny goes on in fp32" in record.getMessage())
    assert told.levelname == "INFO", "8 bits that are refused are no fault"


def test_sigterm_ends_a_service_and_its_child(checkpoint: Path, cache: Path) -> None:
    place = place_of(cache, checkpoint)
    arguments = ("--model", str(checkpoint), "--model-cache", str(cache))
    with fleet(*arguments, frontends=1) as running:
        soon(lambda: bool(exporting(running.supervisor)))
        (child,) = exporting(running.supervisor)
        running.stop(signal.SIGTERM)
        assert running.process.popen.wait(120) == 0
        assert not is_alive(child) and list(place.parent.iterdir()) == []
