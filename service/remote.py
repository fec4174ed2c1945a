"""The scheduler of another process, as a frontend sees it.

What was submitted and is not answered is kept, and sent again to the engine process that comes after one that died.
"""

import asyncio
import itertools
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert.errors import BundleError, NotReadyError, QueueFullError
from bert.tokenizer import Encoding
from service.engines import Engines
from service.link import Link
from service.logs import LOGGER
from service.meeting import SOCKET
from service.messages import Cancel, Done, Failed, Health, Hello, Message, Submit
from service.metrics import Metrics
from service.registry import bundle_folders, read_model
from service.runner import Result, stuck
from service.settings import ServeSettings

CONNECT_EVERY_S = 0.05
SILENT_S = 10.0
"""An engine process says how it goes every second; one that has said nothing for so long does not answer either."""
AWAY_S = 2.0
"""About how long an engine process takes to come back: what a request is told that finds no room to wait."""
LEAVE_S = 2.0
"""For the refusals to reach their clients."""
CHANGED = 75
"""Exit code of a frontend whose bundles were changed (EX_TEMPFAIL)."""
MOST_TOKENS = 16_384
"""That may wait before the first engine process has told its bound."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that the engine process has, or will get."""

    message: Submit
    tokens: int
    done: "asyncio.Future[Result]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RemoteScheduler:
    """Sends encodings to the engine process; see `Scheduler` for what each method promises."""

    def __init__(
        self,
        folder: Path,
        tasks: dict[str, str],
        versions: dict[str, str],
        on_changed: Callable[[], None] | None = None,
    ) -> None:
        """`folder` is where the processes of one service meet, `tasks` and `versions` are by model.

        `on_changed` is called when an engine process has read other bundles than this one: by default this one ends, and is
        started again.
        """
        self._path, self._tasks, self._versions = folder / SOCKET, tasks, versions
        self._on_changed = on_changed if on_changed is not None else leave
        self._changes = ""
        self._link: Link | None = None
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._pending: dict[int, Pending] = {}
        self._tokens = 0
        self._keys = itertools.count(secrets.randbits(31) << 32)  # unlike those of the other frontends
        self._health, self._heard = Health([], 0.0), time.monotonic()
        self._closed = False
        self._connecting = asyncio.create_task(self._connect())

    async def hello(self) -> Hello:
        """Return what the engine process has loaded, when it has."""
        return await asyncio.shield(self._hello)

    @property
    def max_tokens(self) -> int:
        """Return the bound of the engine process's queue."""
        return self._hello.result().max_tokens if self._hello.done() else MOST_TOKENS

    async def submit(
        self, model: str, encodings: Sequence[Encoding], deadline: float = float("inf")
    ) -> Result:
        """Run the encodings; cancel the caller to take them back."""
        if self._closed:
            raise NotReadyError("the service is stopping")
        if self._changes:
            raise NotReadyError(self._changes)
        tokens = sum(len(encoding) for encoding in encodings)
        if self._link is None and self._tokens + tokens > self.max_tokens:
            raise QueueFullError(self._tokens, self.max_tokens, AWAY_S)
        key = next(self._keys)
        message = Submit.of(key, model, self._tasks[model], deadline, encodings)
        pending = self._pending[key] = Pending(message, tokens)
        self._tokens += tokens
        if self._link is not None:
            self._link.send(message)
        try:
            return await pending.done
        except asyncio.CancelledError:
            if self._link is not None:
                self._link.send(Cancel(key))
            raise
        finally:
            del self._pending[key]
            self._tokens -= tokens

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        return set(self._health.suspects)

    def trouble(self) -> str | None:
        """Tell that the engine process is away, or does not come back from a batch."""
        if self._link is None:
            return "waiting for its engine, which ended and is being started again"
        since = time.monotonic() - self._heard
        if since > SILENT_S:
            return f"waiting for its engine, which has said nothing for {since:.0f} s"
        return stuck(self._health.busy_s + since if self._health.busy_s else since)

    async def close(self) -> None:
        """Refuse what still waits."""
        self._closed = True
        self._connecting.cancel()
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(NotReadyError("the service is stopping"))
        if self._link is not None:
            self._link.close()

    async def _connect(self) -> None:
        """Connect as soon as somebody listens."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.create_unix_connection(lambda: Link(self._received, self._lost), str(self._path))
                return
            except OSError:
                await asyncio.sleep(CONNECT_EVERY_S)

    def _received(self, link: Link, message: Message) -> None:
        match message:
            case Hello():
                self._welcomed(link, message)
            case Health():
                self._health, self._heard = message, time.monotonic()
            case Done(key=key):
                if (pending := self._pending.get(key)) is not None and not pending.done.done():
                    pending.done.set_result(message.result())
            case Failed(key=key):
                if (pending := self._pending.get(key)) is not None and not pending.done.done():
                    pending.done.set_exception(message.error())
            case _:
                LOGGER.error("the engine process sent %s", type(message).__name__)

    def _welcomed(self, link: Link, hello: Hello) -> None:
        if hello.versions != self._versions:
            self._changed(hello)
            return
        if self._hello.done():
            LOGGER.warning("the engine is back; %d requests are sent to it again", len(self._pending))
            self._hello = asyncio.get_running_loop().create_future()
        self._hello.set_result(hello)
        self._link, self._heard = link, time.monotonic()
        for pending in self._pending.values():
            if not pending.done.done():
                link.send(pending.message)

    def _changed(self, hello: Hello) -> None:
        """Refuse what was read with a tokenizer and labels that the engine process does not have."""
        differing = sorted(
            name
            for name in {*hello.versions, *self._versions}
            if hello.versions.get(name) != self._versions.get(name)
        )
        what = (
            f"the bundles of {', '.join(differing)} were changed while they are served: restart the service"
        )
        LOGGER.error(what)
        self._changes = what
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(NotReadyError(what))
        if self._hello.done():
            self._on_changed()
        else:
            self._hello.set_exception(BundleError(what))

    def _lost(self, link: Link) -> None:
        if self._closed:
            return
        if self._link is link:  # not one that a dying process still accepted
            LOGGER.error("the engine process ended; %d requests wait for the next", len(self._pending))
            self._link = None
            for pending in self._pending.values():
                pending.message = replace(pending.message, again=True)
        self._connecting = asyncio.create_task(self._connect())


def leave() -> None:
    """End this process soon: it can answer nobody any more, and while it is there no other takes its place."""
    os.kill(os.getpid(), signal.SIGINT)  # not SIGTERM, after which requests are still taken for `drain_s`
    asyncio.get_running_loop().call_later(LEAVE_S, os._exit, CHANGED)


async def connect_engines(settings: ServeSettings, _: Metrics, folder: Path) -> Engines:
    """Read the bundles, and wait for the engine process that runs them."""
    folders = bundle_folders(settings.bundles)
    models = await asyncio.to_thread(
        lambda: [read_model(bundle, verify_hashes=False) for bundle in folders]  # the engine process does
    )
    scheduler = RemoteScheduler(
        folder,
        {model.name: model.spec.task for model in models},
        {model.name: model.version for model in models},
    )
    hello = await scheduler.hello()
    return Engines(models, scheduler, hello.budgets)
