"""A scheduler for frontends that sends requests to the engine process.

Requests without a response are kept. When the engine process ends they are sent to the next one, at most MAX_RETRIES
times. The engine runs a last attempt alone and announces it (`Started`), so a request is given up only if the engine
process ended on that request and no other.
"""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakValueDictionary

from bert.errors import (
    EngineError,
    ModelLeftOutError,
    ModelReplacedError,
    NotReadyError,
    QueueFullError,
    ServiceError,
)
from bert.names import name_of
from bert.tokenizer import Encoding
from service.engine.models import Model, Registry, by_key
from service.logs import LOGGER
from service.metrics import Metrics
from service.scheduling.fair_queue import NO_LANE, Lane, own_room
from service.scheduling.scheduler_protocol import ServedModels, SubmitResult
from service.settings import ServeSettings
from service.workers.heartbeat import BEAT_EVERY_S, Beat, SilenceTimer
from service.workers.messages import (
    MAX_RETRIES,
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
from service.workers.runtime_dir import SOCKET

CONNECT_EVERY_S = 0.05
SILENT_S = 3.0
"""Seconds without a Health message, which comes every second, after which the engine counts as silent."""
AWAY_S = 2.0
"""Typical seconds until a new engine process is ready: `Retry-After` of a request that finds no room to wait."""
LONG_AWAY_S, SLOW_LOADS = 15.0, 2.0
"""Seconds without an engine process after which requests no longer wait for one, or so many times the time that this process
waited for its first, if that is longer: then something is wrong, such as storage that hangs."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that the engine process has or will get."""

    message: Submit
    tokens: int
    runs_alone: bool = False
    """The engine process has started the last attempt."""
    done: "asyncio.Future[SubmitResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def received(self, message: Started | Done | Failed) -> None:
        """Handle what the engine process says about the request."""
        match message:
            case Started():
                self.runs_alone = True
            case Done() if not self.done.done():
                self.done.set_result(message.result())
            case Failed():
                self.fail(message.error())

    def fail(self, error: Exception) -> None:
        """Fail the request; no-op if it is done."""
        if not self.done.done():
            self.done.set_exception(error)

    def count_attempt(self) -> None:
        """Prepare for the next engine process after one ended, or give the request up."""
        if not self.message.is_last_attempt:
            self.message = replace(self.message, attempts=self.message.attempts + 1)
        elif self.runs_alone:
            times = MAX_RETRIES + 1
            self.fail(EngineError(f"the engine process ended {times} times while it worked on this request"))
        self.runs_alone = False


class RemoteScheduler:
    """Implements SchedulerProtocol over a connection to the engine process."""

    def __init__(
        self,
        runtime_dir: Path,
        note_away: Callable[[int, int], None] = lambda *_: None,
        on_second: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect to the engine process in the background, now and whenever it is replaced.

        `note_away` gets the requests and tokens that wait for an engine process. `on_second` is called every second.
        """
        self._path = runtime_dir / SOCKET
        self._note_away = note_away
        self._refusal = ""
        """Why nothing is taken any more; empty while requests are."""
        self._connection: Connection | None = None
        self._hello: Hello | None = None
        self._hellos = asyncio.Queue[Hello]()
        self._origins, self._tasks = dict[str, str](), dict[str, str]()
        """Origin and task of each model that this process has had, by id: requests may still hold one that was replaced."""
        self._served = set[str]()
        """Ids of the models that this engine process has had; it refuses those that have left."""
        self._models = WeakValueDictionary[str, Model]()
        """Models of this process that anything holds, by id."""
        self._taken = Taken(-1, [])
        self._managing = dict[int, asyncio.Future[None]]()
        self.engines_ended = 0
        """Number of engine processes that ended while this process was connected to them."""
        self._pending: dict[int, Pending] = {}
        self._tokens = 0
        self._lanes = Counter[Lane]()
        """Tokens of the pending requests, by lane."""
        self._keys = itertools.count(secrets.randbits(31) << 32)  # unlike those of the other frontends
        self._health, self._silence, self._heard = Health([], {}), SilenceTimer(), False
        self._away, self._patience_s = SilenceTimer(), LONG_AWAY_S
        self._connecting = asyncio.create_task(self._connect())
        self._watching = asyncio.create_task(self._watch(on_second))

    async def hello(self) -> Hello:
        """Wait until an engine process says what it has loaded: at first, and then whenever it says so again."""
        return await self._hellos.get()

    @property
    def max_tokens(self) -> int:
        """Return the bound of the engine process's queue."""
        assert self._hello is not None
        return self._hello.max_tokens

    async def submit(
        self, model: str, encodings: Sequence[Encoding], deadline: float = float("inf"), lane: Lane = NO_LANE
    ) -> SubmitResult:
        """Run the encodings; see `SchedulerProtocol`."""
        if self._refusal:
            raise NotReadyError(self._refusal)
        tokens = sum(len(encoding) for encoding in encodings)
        if (silent := self._silent()) is not None:
            raise NotReadyError(f"the service is {silent}")
        if self._connection is None and (away_s := self._away.seconds) > self._patience_s:
            raise NotReadyError(f"the service has had no engine for {away_s:.0f} s; its log says why")
        hello = self._hello
        assert hello is not None
        model = self._present(model)
        # Checked here too: the engine may not have read what was sent, and so not have refused it.
        limit = hello.max_tokens + (hello.running_tokens if self._connection is not None else 0)
        if (excess := self._tokens + tokens - limit) > 0 and self._lanes[lane] + tokens > own_room(
            limit, lane, self._lanes
        ):
            rate = self._health.tokens_per_s.get(model) if self._connection is not None else None
            raise QueueFullError(
                self._tokens, limit, excess / rate if rate else AWAY_S, tokens_per_s=rate or 0.0
            )
        key = next(self._keys)
        message = Submit.of(key, model, self._tasks[model], deadline, encodings, lane)
        pending = self._pending[key] = Pending(message, tokens)
        self._tokens += tokens
        self._lanes[lane] += tokens
        self._send(message)
        try:
            return await pending.done
        except asyncio.CancelledError:
            self._send(Cancel(key))
            raise
        finally:
            del self._pending[key]
            self._tokens -= tokens
            self._lanes[lane] -= tokens
            if not self._lanes[lane]:
                del self._lanes[lane]
            if self._connection is None:
                self._note_waiting()

    def _present(self, model: str) -> str:
        """Return the id under which the engine runs what was tokenised for a model.

        Raises ModelLeftOutError or ModelReplacedError if it has neither this version nor one of the same origin.
        """
        if model in self._served:
            return model
        assert self._hello is not None
        name, origin = name_of(model), self._origins.get(model)
        same = (
            other for other, its in self._hello.origins.items() if its == origin and name_of(other) == name
        )
        if found := next(same, None):
            return found
        is_left_out = name in (left_out for left_out, _, _ in self._hello.left_out)
        raise ModelLeftOutError(name) if is_left_out else ModelReplacedError(name)

    async def manage(self, action: str, name: str) -> None:
        """Have the engine process do what `Manage` describes."""
        if (error := self.health_error()) is not None or self._connection is None:
            raise NotReadyError(f"the service is {error}")
        key = next(self._keys)
        done = self._managing[key] = asyncio.get_running_loop().create_future()
        self._connection.send(ManageModel(key, action, name))
        try:
            await done
        finally:
            del self._managing[key]

    def take(self, hello: Hello, models: Iterable[Model]) -> None:
        """Note that requests get these models from now on, and tell the engine process."""
        self._models.update({model.id: model for model in models})
        self._taken = replace(self._taken, number=hello.number)
        self._send_taken()

    def _send_taken(self) -> None:
        """Tell the engine process which replaced models are still held."""
        if self._hello is not None and self._connection is not None:
            self._taken = Taken(self._taken.number, sorted({*self._models} - {*self._hello.tasks}))
            self._connection.send(self._taken)

    def _send(self, message: Submit | Cancel) -> None:
        """Send a message, or nothing while there is no engine process: the next one gets what is pending."""
        if self._connection is not None:
            self._connection.send(message)
        else:
            self._note_waiting()

    def _note_waiting(self) -> None:
        """Report how much waits because no engine process answers."""
        is_away = self.health_error() is not None
        self._note_away(len(self._pending) if is_away else 0, self._tokens if is_away else 0)

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        return set(self._health.suspects)

    def health_error(self) -> str | None:
        """Report that the engine process is away or silent."""
        if self._connection is None:
            return "waiting for its engine, which ended and is being started again"
        return self._silent()

    def _silent(self) -> str | None:
        """Report that the engine process is connected but silent: it is stopped, or held by native code."""
        if self._connection is None or self._silence.seconds <= SILENT_S:
            return None
        return f"waiting for its engine, which has said nothing for {self._silence.seconds:.0f} s"

    async def close(self) -> None:
        """Refuse waiting requests and disconnect."""
        self._connecting.cancel()
        self._watching.cancel()
        self._refuse("the service is stopping")
        if self._connection is not None:
            self._connection.close()

    def _refuse(self, why: str) -> None:
        """Refuse what waits and what comes from now on."""
        self._refusal = why
        for pending in self._pending.values():
            pending.fail(NotReadyError(why))

    async def _watch(self, on_second: Callable[[], None]) -> None:
        """Measure the silence of the engine process."""
        while True:
            on_second()
            self._silence.update(happened=self._heard or self._connection is None)
            self._away.update(happened=self._connection is not None)
            self._heard = False
            self._note_waiting()
            self._send_taken()
            await asyncio.sleep(BEAT_EVERY_S)

    async def _connect(self) -> None:
        """Connect as soon as an engine process listens."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.create_unix_connection(
                    lambda: Connection(self._received, self._lost), str(self._path)
                )
                return
            except OSError:
                await asyncio.sleep(CONNECT_EVERY_S)

    def _received(self, connection: Connection, message: Message) -> None:
        match message:
            case Hello():
                self._welcomed(connection, message)
            case Health():
                self._health, self._heard = message, True
                self._silence.seconds = 0.0
            case Managed(key=key) | Failed(key=key) if key in self._managing:
                if not (done := self._managing[key]).done():
                    if isinstance(message, Failed):
                        done.set_exception(message.error())
                    else:
                        done.set_result(None)
            case Started() | Done() | Failed():
                if (pending := self._pending.get(message.key)) is not None:
                    pending.received(message)
            case _:
                LOGGER.error("the engine process sent %s", type(message).__name__)

    def _welcomed(self, connection: Connection, hello: Hello) -> None:
        is_new = connection is not self._connection
        if is_new and self._hello is not None:
            LOGGER.warning("the engine is back; %d requests are sent to it again", len(self._pending))
        if self._hello is None:
            self._patience_s = max(self._patience_s, SLOW_LOADS * self._away.seconds)
        self._hello = hello
        self._origins |= hello.origins
        self._tasks |= hello.tasks
        self._served = {*hello.tasks} if is_new else self._served | {*hello.tasks}
        self._hellos.put_nowait(hello)
        self._connection, self._silence.seconds = connection, 0.0
        self._note_waiting()
        for pending in self._pending.values() if is_new else ():
            if pending.done.done():
                continue
            try:
                pending.message = replace(pending.message, model=self._present(pending.message.model))
            except ServiceError as error:
                pending.fail(error)
            else:
                connection.send(pending.message)

    def _lost(self, connection: Connection) -> None:
        if self._refusal:
            return
        if self._connection is connection:  # not a connection that a dying process still accepted
            LOGGER.error("the engine process ended; %d requests wait for the next", len(self._pending))
            self.engines_ended += 1
            # Its suspects too: the next process opens every model anew.
            self._connection, self._health = None, Health([], {})
            for managing in self._managing.values():
                if not managing.done():
                    managing.set_exception(
                        NotReadyError("the engine process ended meanwhile; /models says what is served")
                    )
            for pending in self._pending.values():
                pending.count_attempt()
            self._note_waiting()
        self._connecting = asyncio.create_task(self._connect())


async def connect_models(
    settings: ServeSettings, metrics: Metrics, runtime_dir: Path, beat: Beat
) -> ServedModels:
    """Wait for the engine process and return its models, with heartbeats meanwhile."""
    scheduler = RemoteScheduler(
        runtime_dir, note_away=metrics.note_engine_away, on_second=lambda: beat(settings.hung_after_s)
    )
    hello = await scheduler.hello()
    served = await _served(scheduler, hello, settings.default_versions)

    async def changes(hello: Hello, served: ServedModels) -> AsyncIterator[ServedModels]:
        while True:
            # Whoever asks for the next one has taken the last one over.
            scheduler.take(hello, served.registry.models.values())
            while True:
                hello = await scheduler.hello()
                try:
                    served = await _served(
                        scheduler, hello, settings.default_versions, served.registry.models.values()
                    )
                except Exception:  # it would end the iterator, and no later change would be seen
                    LOGGER.exception("the models of the engine process could not be read")
                else:
                    break
            yield served

    return replace(served, changes=changes(hello, served), manage=scheduler.manage)


async def _served(
    scheduler: RemoteScheduler, hello: Hello, versions: Mapping[str, str], known: Iterable[Model] = ()
) -> ServedModels:
    """Return what the engine process serves; tokenizers of models that are known are not read again."""
    models = by_key(await asyncio.to_thread(hello.models, known), versions)
    registry = Registry(models, hello.defaults, first=hello.first, **hello.registry_lists)
    return ServedModels(registry, scheduler, hello.budgets, hello.running_tokens, hello.slots)
