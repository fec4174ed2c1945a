"""The engine process: models, scheduler and engine behind a Unix socket."""

import asyncio
import os
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bert.errors import BertError, EngineError, ServiceError
from bert.names import name_of
from service.engine.bundle_folders import FoundBundles
from service.engine.sample_texts import WARM_UP_TOKENS, sample_texts
from service.logs import LOGGER, report_fatal
from service.metrics import Metrics
from service.scheduling.fair_queue import Lane
from service.scheduling.scheduler import Scheduler, stuck_message
from service.scheduling.scheduler_protocol import LOOK_AGAIN, ServedModels, SubmitResult
from service.settings import ServeSettings
from service.system import FAILURE, HANG_UP, MemoryBound, release_free_memory, return_freed_memory
from service.workers.generations import RECORD, Record
from service.workers.heartbeat import BEAT_EVERY_S, LOADING_HUNG_S, Beat, SilenceTimer
from service.workers.messages import (
    Cancel,
    Connection,
    Done,
    Failed,
    Health,
    Hello,
    Managed,
    ManageModel,
    Message,
    Started,
    Submit,
    Taken,
)
from service.workers.open_models import open_bundles
from service.workers.runtime_dir import SOCKET
from service.workers.served_bundles import TAKE_OVER_S, ServedBundles
from service.workers.start import StartMessage, when_orphaned

STUCK = 70
"""Exit code of an engine process that gives up: a batch does not end, or the GPU is lost (EX_SOFTWARE)."""
PROBE_S = 5.0
"""Seconds that a probe of the GPU may take."""
IDLE_POLL_S = 0.005
ANSWER_S = 0.1
"""Seconds given to the answer of a stuck request to leave before the process ends."""
END_S = 2.0
"""Seconds given to running batches at the end of the process; nobody waits for them."""


def run_engine(start: StartMessage, beat: Beat) -> int:
    """Run until the frontends are done; the parent handles the signals that stop the service."""

    if MemoryBound().bytes() is not None:
        return_freed_memory()  # so that the bound counts what is used; else blocks are better kept than mapped anew

    async def run() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        when_orphaned(lambda: loop.call_soon_threadsafe(ended.set), start.runtime_dir)
        worker = EngineWorker(
            start.settings, start.runtime_dir, start.found, is_successor=start.is_successor, beat=beat
        )
        worker.metrics.count_restarts("engine", start.restarts)
        if HANG_UP is not None:
            loop.add_signal_handler(HANG_UP, worker.look_again)
        await worker.run(ended)

    loop_module = import_module("uvloop" if find_spec("uvloop") else "asyncio")
    try:
        loop_module.run(run())
    except BertError as error:
        report_fatal("bert-serve", error)
        return FAILURE
    return 0


class EngineWorker:
    """Runs the frontends' requests; one per process."""

    def __init__(
        self,
        settings: ServeSettings,
        runtime_dir: Path,
        found: FoundBundles | None = None,
        *,
        is_successor: bool = False,
        beat: Beat = lambda _: None,
    ) -> None:
        """Load nothing yet; see `open_models` for `found` and `is_successor`."""
        self._settings, self._runtime_dir, self.metrics = settings, runtime_dir, Metrics()
        self._found, self._is_successor, self._beat = found, is_successor, beat
        self._bundles: ServedBundles
        self._scheduler: Scheduler
        self._tasks: dict[Connection, dict[int, asyncio.Task[None]]] = {}
        """Running requests of each connection, by key."""
        self._admission = asyncio.Lock()
        """Held by a last attempt while it runs, so that requests after it wait."""
        self._hello: Hello | None = None
        self._taken: dict[Connection, Taken] = {}
        """What each frontend has taken over last."""
        self._looking: asyncio.Task[None] | None = None
        self._is_asked = False
        """A signal has asked to look at the bundles again."""
        self._on_gpu: set[str] = set()
        """Ids of the models on a GPU."""

    def look_again(self) -> None:
        """Look at the bundles again, once they are loaded."""
        self._is_asked = True
        if self._hello is not None:
            self._looking = asyncio.create_task(self._bundles.manage(LOOK_AGAIN))

    async def run(self, ended: asyncio.Event) -> None:
        """Load, then answer until the event; raises what prevents loading."""
        self._bundles = await self._load(ended)
        self._scheduler, self._bundles.is_held = self._bundles.scheduler, self._is_held
        self._take(self._bundles.now())
        release_free_memory()
        # Renamed once it listens, so that a frontend that finds the socket can connect.
        unready = self._runtime_dir / f"{os.getpid()}.sock"
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._received, self._lost, self._made), unready
        )
        unready.rename(self._runtime_dir / SOCKET)
        try:
            async with asyncio.TaskGroup() as tasks:  # without heartbeats the process must end, and say why
                running = [tasks.create_task(self._tick()), tasks.create_task(self._follow())]
                if self._is_asked:
                    self.look_again()
                await ended.wait()
                for task in running:
                    task.cancel()
        finally:
            server.close()
            await self._close()

    async def _load(self, ended: asyncio.Event) -> ServedBundles:
        """Open the models. If `ended` is set or it takes too long, exit at once: native code cannot be cancelled."""
        file = self._runtime_dir / RECORD
        loading = asyncio.create_task(
            open_bundles(
                self._settings,
                self.metrics,
                self._found,
                is_successor=self._is_successor,
                keep_tokenizers=False,  # frontends tokenise
                record=Record.read(file) if self._is_successor else Record(file),
            )
        )
        give_up_at = time.monotonic() + self._settings.load_timeout_s
        while not (await asyncio.wait([loading], timeout=BEAT_EVERY_S))[0]:
            self._beat(LOADING_HUNG_S)
            if ended.is_set():
                os._exit(0)
            if time.monotonic() > give_up_at:
                _give_up(
                    f"the models are not loaded after {self._settings.load_timeout_s} s (load_timeout_s)",
                    "the process ends; at the first start the service ends with 1, later the process is started again",
                )
        return loading.result()

    def _take(self, served: ServedModels) -> None:
        """Note what is served, for the frontends."""
        # Numbers of the engine process before are smaller.
        number = self._hello.number + 1 if self._hello is not None else time.monotonic_ns()
        self._hello, models = Hello.of(served, number), served.registry.models.values()
        self._on_gpu = {model.id for model in models if model.bundle.manifest.layout == "flat"}

    async def _follow(self) -> None:
        """Tell the frontends what is served whenever that changes, and wait until they have taken it over."""
        async for served in self._bundles.changes():
            self._take(served)
            assert self._hello is not None
            for connection in self._tasks:
                connection.send(self._hello)
            give_up_at = time.monotonic() + TAKE_OVER_S
            while not self._have_all_taken() and time.monotonic() < give_up_at:
                await asyncio.sleep(IDLE_POLL_S)

    def _have_all_taken(self) -> bool:
        """Tell whether all frontends have taken over what is served now."""
        assert self._hello is not None
        taken = (self._taken.get(connection) for connection in self._tasks)
        return all(each is not None and each.number >= self._hello.number for each in taken)

    def _is_held(self, model: str) -> bool:
        """Tell whether a frontend may still send a request for a model that was replaced."""
        return not self._have_all_taken() or any(model in taken.held for taken in self._taken.values())

    async def _manage(self, connection: Connection, message: ManageModel) -> None:
        try:
            await self._bundles.manage(message.action, message.name)
        except BertError as error:
            connection.send(Failed.of(message.key, error))
        else:
            connection.send(Managed(message.key))

    async def _close(self) -> None:
        """Close the scheduler; end the process if a batch keeps it from closing."""
        try:
            await asyncio.wait_for(self._scheduler.close(), END_S)
        except TimeoutError:
            os._exit(STUCK)

    def _made(self, connection: Connection) -> None:
        assert self._hello is not None
        self._tasks[connection] = {}
        connection.send(self._hello)
        connection.send(self._health())

    def _lost(self, connection: Connection) -> None:
        self._taken.pop(connection, None)
        for running in self._tasks.pop(connection, {}).values():
            running.cancel()

    def _received(self, connection: Connection, message: Message) -> None:
        tasks = self._tasks[connection]
        match message:
            case Submit(key=key):
                task = tasks[key] = asyncio.create_task(self._answer(connection, message))
                # Not in the task: one that is cancelled before its first step runs nothing.
                task.add_done_callback(lambda _: tasks.pop(key))
            case ManageModel(key=key):
                task = tasks[key] = asyncio.create_task(self._manage(connection, message))
                task.add_done_callback(lambda _: tasks.pop(key))
            case Cancel(key=key):
                if key in tasks:
                    tasks[key].cancel()
            case Taken():
                self._taken[connection] = message
            case _:
                LOGGER.error("a frontend sent %s", type(message).__name__)

    async def _answer(self, connection: Connection, message: Submit) -> None:
        try:
            connection.send(Done.of(message.key, await self._run(connection, message)))
        except Exception as error:
            connection.send(Failed.of(message.key, error))
        finally:
            self.metrics.note_queues(name_of(message.model))

    async def _run(self, connection: Connection, message: Submit) -> SubmitResult:
        """Run a request with others; a last attempt alone, after those that came before it."""
        if not message.is_last_attempt:
            await self._last_attempts_first()
            return await self._submit(message)
        async with self._admission:
            # Polled: a batch whose requests were all cancelled occupies the engine too.
            while not self._scheduler.is_idle:
                await asyncio.sleep(IDLE_POLL_S)
            connection.send(Started(message.key))
            return await self._submit(message)

    async def _last_attempts_first(self) -> None:
        """Wait while a last attempt runs. Submit before awaiting anything else, or the next one may have begun."""
        if self._admission.locked():
            async with self._admission:
                pass

    async def _submit(self, message: Submit) -> SubmitResult:
        encodings, is_retry, lane = (
            message.encodings(),
            message.attempts > 0,
            Lane(message.lane, message.share),
        )
        return await self._scheduler.submit(
            message.model, encodings, message.deadline, retry=is_retry, lane=lane
        )

    async def _tick(self) -> None:
        """Report health every second; end the process when the engine will not recover."""
        probe: asyncio.Task[None] | None = None
        busy, oldest, bound = SilenceTimer(), None, MemoryBound()
        while True:
            self._beat(self._scheduler.stuck_after_s(None))
            bound.set()
            self.metrics.note_queues()
            for connection in self._tasks:
                connection.send(self._health())
            before, oldest = oldest, self._scheduler.oldest()
            # Not by the clock: a machine that was suspended amid a batch would end the process on resuming.
            busy.update(happened=oldest is None or oldest != before)
            if oldest is not None and busy.seconds > self._scheduler.stuck_after_s(oldest[1]):
                self._scheduler.fail_stuck(oldest[1], busy.seconds)
                await asyncio.sleep(ANSWER_S)
                _give_up(f"the engine is {stuck_message(busy.seconds)}")
            if self._suspects_on_gpu() and (probe is None or probe.done()):
                # A task of its own: the probe waits in the queue, and heartbeats must not.
                probe = asyncio.create_task(self._probe_gpu())
            await asyncio.sleep(BEAT_EVERY_S)

    def _health(self) -> Health:
        rates = {name: each.tokens_per_s for name, each in self._scheduler.queue.throughput.items()}
        return Health(sorted(self._scheduler.suspects()), rates)

    def _suspects_on_gpu(self) -> set[str]:
        return self._scheduler.suspects() & self._on_gpu

    async def _probe_gpu(self) -> None:
        """End the process if a suspected model on a GPU fails on a sample text too.

        After an error on the device every later call in a process fails, and only a new process helps.
        """
        for name in self._suspects_on_gpu():
            try:
                await self._last_attempts_first()
                async with asyncio.timeout(PROBE_S):
                    await self._scheduler.submit(name, sample_texts(WARM_UP_TOKENS))
            except EngineError:
                _give_up(f"{name} fails on the GPU whatever it is given")
            except (TimeoutError, ServiceError):
                continue  # too busy to tell
            except Exception:
                LOGGER.exception("the GPU could not be probed with %s", name)


def _give_up(why: str, then: str = "the process ends and is started again") -> None:
    LOGGER.error("%s: %s", why, then)
    os._exit(STUCK)
