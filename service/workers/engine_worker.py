"""The engine process: models, scheduler and engine behind a Unix socket."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from bert.errors import EngineError, ServiceError
from bert.files import atomic_write
from service.engine.memory import release_free_memory
from service.engine.sample_texts import WARM_UP_TOKENS, sample_texts
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.scheduler import Scheduler, stuck_message
from service.scheduling.scheduler_protocol import Result
from service.scheduling.served_models import ServedModels
from service.settings import ServeSettings
from service.workers.connection import Link
from service.workers.heartbeat import BEAT_EVERY_S, LOADING_HUNG_S, Beat, SilenceTimer
from service.workers.messages import Cancel, Done, Failed, Health, Hello, Message, Started, Submit
from service.workers.open_models import open_models
from service.workers.runtime_dir import RESTARTS, SOCKET

STUCK = 70
"""Exit code of an engine process that gives up: on a batch which does not end, on a GPU that is lost (EX_SOFTWARE)."""
PROBE_S = 5.0
IDLE_POLL_S = 0.005
END_S = 2.0
"""For the batches that still run when the process is to end: nobody waits for them."""


class EngineServer:
    """Answers the frontends' requests. One for a process."""

    def __init__(
        self, settings: ServeSettings, folder: Path, restarts: int = 0, beat: Beat = lambda _: None
    ) -> None:
        """Nothing is loaded yet.

        `folder` is where the processes of one service meet, `restarts` how many were before, `beat` gives a sign of life.
        """
        self._beat = beat
        self._settings, self._folder, self._metrics = settings, folder, Metrics()
        self._restarts = restarts
        self._scheduler: Scheduler
        self._links: set[Link] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._of_link: dict[Link, set[int]] = {}
        self._admission = asyncio.Lock()
        """Held by a last attempt while it runs, so that requests after it wait."""
        self._hello: Hello | None = None
        self._on_gpu: set[str] = set()
        """Models."""

    async def run(self, ended: asyncio.Event) -> None:
        """Load, then answer until the event; raises what stands in the way of loading."""
        self._count_restarts()
        engines = await self._load(ended)
        assert isinstance(engines.scheduler, Scheduler)
        self._scheduler, self._hello = engines.scheduler, Hello.of(engines)
        self._on_gpu = {m.name for m in engines.models if m.bundle.manifest.layout == "flat"}
        del engines  # the tokenizers with it: texts are read in the frontends
        release_free_memory()
        # Under its name only when it listens: a frontend that finds it can connect.
        aside = self._folder / f"{os.getpid()}.sock"
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Link(self._received, self._lost, self._made), aside
        )
        aside.rename(self._folder / SOCKET)
        tick = asyncio.create_task(self._tick())
        try:
            await ended.wait()
        finally:
            tick.cancel()
            server.close()
            await self._close()

    async def _load(self, ended: asyncio.Event) -> ServedModels:
        """Open the models; end the process at its end or where that takes too long: no thread in native code can be."""
        loading = asyncio.create_task(open_models(self._settings, self._metrics))
        limit_s = time.monotonic() + self._settings.load_timeout_s
        while not (await asyncio.wait([loading], timeout=BEAT_EVERY_S))[0]:
            self._beat(LOADING_HUNG_S)
            if ended.is_set():
                os._exit(0)
            if time.monotonic() > limit_s:
                self._give_up(
                    f"the models are not loaded after {self._settings.load_timeout_s} s (load_timeout_s)",
                    "the process ends; at the first start the service ends with 1, later the process is started again",
                )
        return loading.result()

    def _count_restarts(self) -> None:
        """Count those that nobody has: a process may have died before it came to that."""
        file = self._folder / RESTARTS
        counted = int(file.read_text()) if file.exists() else 0
        if self._metrics.engine_restarts is not None:
            self._metrics.engine_restarts.inc(self._restarts - counted)
        atomic_write(file, str(self._restarts))

    async def _close(self) -> None:
        """End the scheduler; end the process where a batch keeps it from ending."""
        try:
            await asyncio.wait_for(self._scheduler.close(), END_S)
        except TimeoutError:
            os._exit(STUCK)

    def _made(self, link: Link) -> None:
        assert self._hello is not None
        self._links.add(link)
        self._of_link[link] = set()
        link.send(self._hello)

    def _lost(self, link: Link) -> None:
        self._links.discard(link)
        for key in self._of_link.pop(link, ()):
            self._cancel(key)

    def _received(self, link: Link, message: Message) -> None:
        match message:
            case Submit(key=key):
                task = asyncio.create_task(self._answer(link, message))
                self._tasks[key] = task
                self._of_link[link].add(key)
                # Not in the task: one that is cancelled before its first step runs nothing.
                task.add_done_callback(lambda _: self._forget(link, key))
            case Cancel():
                self._cancel(message.key)
            case _:
                LOGGER.error("a frontend sent %s", type(message).__name__)

    def _cancel(self, key: int) -> None:
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def _answer(self, link: Link, message: Submit) -> None:
        try:
            link.send(Done.of(message.key, await self._run(link, message)))
        except Exception as error:
            link.send(Failed.of(message.key, error))
        finally:
            self._metrics.note_queue(message.model)

    async def _run(self, link: Link, message: Submit) -> Result:
        """Run a request with others; a last attempt alone, after those that came before it."""
        if not message.is_last_attempt:
            if self._admission.locked():
                async with self._admission:
                    pass
            return await self._submit(message)
        async with self._admission:
            # Polled: a batch whose requests were all cancelled occupies the engine too.
            while not self._scheduler.is_idle:
                await asyncio.sleep(IDLE_POLL_S)
            link.send(Started(message.key))
            return await self._submit(message)

    async def _submit(self, message: Submit) -> Result:
        encodings, is_retry = message.encodings(), message.attempts > 0
        return await self._scheduler.submit(message.model, encodings, message.deadline, retry=is_retry)

    def _forget(self, link: Link, key: int) -> None:
        self._tasks.pop(key, None)
        self._of_link.get(link, set()).discard(key)

    async def _tick(self) -> None:
        """Tell the parent and the frontends how it goes; end the process when the engine does not come back."""
        probe: asyncio.Task[str | None] | None = None
        busy, oldest = SilenceTimer(), None
        while True:
            limit_s = self._scheduler.stuck_after_s()
            self._beat(limit_s)
            for model in self._scheduler.queue.budgets:
                self._metrics.note_queue(model)
            health = Health(sorted(self._scheduler.suspects()))
            for link in self._links:
                link.send(health)
            before, oldest = oldest, self._scheduler.oldest_start()
            # Not by the clock: a machine that was suspended amid a batch would end the process when it goes on.
            if busy.look(happened=oldest is None or oldest != before) > limit_s:
                self._give_up(f"the engine is {stuck_message(busy.seconds)}")
            # A task of its own: it waits in the queue, and what was said above is to be said every second.
            if probe is not None and probe.done():
                if (name := probe.result()) is not None:
                    self._give_up(f"{name} fails on the GPU whatever it is given")
                probe = None
            if probe is None and self._scheduler.suspects() & self._on_gpu:
                probe = asyncio.create_task(self._lost_its_gpu())
            await asyncio.sleep(BEAT_EVERY_S)

    def _give_up(self, why: str, then: str = "the process ends and is started again") -> None:
        LOGGER.error("%s: %s", why, then)
        os._exit(STUCK)

    async def _lost_its_gpu(self) -> str | None:
        """Return a model on a GPU that fails again and again, on a text that nobody sent too; None if there is none.

        After an error on the device every later call of a process fails: only a new process helps.
        """
        for name in self._scheduler.suspects() & self._on_gpu:
            with suppress(TimeoutError, ServiceError):
                try:
                    probe = self._scheduler.submit(name, sample_texts(WARM_UP_TOKENS))
                    await asyncio.wait_for(probe, PROBE_S)
                except EngineError:
                    return name
        return None
