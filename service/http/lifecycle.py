"""State of the service: loading, ready, draining, closed."""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

from prometheus_client import Gauge
from starlette.requests import Request

from bert.errors import (
    EngineError,
    ModelLeftOutError,
    ModelReplacedError,
    NotReadyError,
    QueueFullError,
)
from bert.names import name_of
from service.engine.models import Model, Registry
from service.http.limits import BodyBudget, InFlightLimit, UnsentResponses
from service.http.problems import ProblemError, problem_of
from service.http.request_log import RequestLog
from service.http.streams.spool import SpoolFile
from service.logs import LOGGER
from service.metrics import Metrics
from service.pipeline.inputs import RequestContext
from service.pipeline.label_vectors import LabelVectors
from service.pipeline.pipeline import Pipeline
from service.sampling import Sampler
from service.scheduling.scheduler_protocol import LOOK_AGAIN, Manage, SchedulerProtocol, ServedModels
from service.settings import ServeSettings
from service.system import release_free_memory, usable_cores

OpenModels = Callable[[ServeSettings, Metrics], Awaitable[ServedModels]]
"""Loads the models, or connects to the process that has them."""

WAITING_BODIES = 8
"""Limit of text waiting to be tokenised, in bodies of the maximum size."""
HELD_BODIES = 64
"""Default limit of what the bodies of all requests hold in memory, in bodies of the maximum size."""
LEAST_HELD_BYTES = 2**20
"""Least default limit. One read of a socket may bring 256 KiB, which are counted before it is known what they are."""
LEAST_BATCHES_IN_HAND = 2
"""Batches that requests of many lines may have in work if the engine has one slot: one that runs and one that waits. With
more slots it is one for each: lines end one by one and others take their place."""
ANSWERED_LINES = "answered_lines"
"""Key in a request's state for the number of its lines that were answered, if it has lines; each was recorded by itself."""
WARM_UP_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 10.0
PROBE_EVERY_S = 5.0
ACCEPT_AFTER_S = 10.0
"""Longest time that a successor waits for its models before it accepts connections; probes must get an answer."""
ACCEPT_POLL_S = 0.1
PARENT_SILENT_S = 10.0
"""Seconds without a sign of life of the parent process after which it is not expected to start an engine again."""
STOPPING = "stopping"
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Loaded:
    """What requests need once the models are loaded."""

    registry: Registry
    scheduler: SchedulerProtocol
    pipeline: Pipeline
    budgets: Mapping[str, int]
    """Maximum tokens in a batch, by model."""
    in_flight: InFlightLimit
    """Bound on the work of requests of many lines."""
    spool_file: SpoolFile
    """Room for lines that have arrived and wait."""
    manage: Manage | None = None
    """Loads, unloads or brings back a model."""


def log_failure(error: Exception) -> None:
    """Log the error that kept the models from loading."""
    LOGGER.error("the models could not be loaded: %s", error, exc_info=error)


class Service:
    """Holds the loaded models and knows whether requests can be answered."""

    def __init__(self, settings: ServeSettings, open_models: OpenModels) -> None:
        """Load nothing yet; `open_models` does that later."""
        self.settings, self.metrics, self._open = settings, Metrics(), open_models
        held_bodies = max(HELD_BODIES * settings.max_body_bytes, LEAST_HELD_BYTES)
        self.bodies = BodyBudget(settings.max_bodies_bytes or held_bodies)
        self.unsent = UnsentResponses(settings.max_response_bytes)
        self.request_log = RequestLog(logs_all=settings.access_log)
        share, folder = settings.sample_share, settings.sample_dir
        self.sampler = Sampler(share, folder) if share > 0 and folder is not None else None
        self.on_ready: Callable[[], None] = lambda: None
        """Called when requests can be answered."""
        self.on_failure: Callable[[Exception], None] = log_failure
        """Called with the error that kept the models from loading."""
        self.is_successor = False
        """True for a process that takes the place of one of several; it accepts no connections without models."""
        self.parent_silent_s: Callable[[], float] = lambda: 0.0
        """Returns the seconds without a sign of life of the parent process, if there is one."""
        self.metrics.watch_ready(lambda: self.why_not_ready() is None)
        self._loaded: Loaded | None = None
        self._stage = "loading its models"
        self._unhealthy: set[str] = set()
        """Ids of models that fail on the warm-up text."""
        self._last_probe = 0.0
        self._probe: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._shadowing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._announced: dict[tuple[Gauge, tuple[str, ...]], int] = {}
        """Values of the models' gauges, by gauge and labels."""

    @property
    def loaded(self) -> Loaded:
        """Return the loaded models; raises NotReadyError while there are none."""
        if self._loaded is None:
            raise NotReadyError(f"the service is {self._stage}; /health/ready says when it can answer")
        return self._loaded

    def known_models(self) -> set[str]:
        """Return the names of the models that are served, left out or unloaded; raises NotReadyError as `loaded` does."""
        registry = self.loaded.registry
        skipped = {each.name for each in (*registry.left_out, *registry.unloaded)}
        return skipped | {model.name for model in registry.models.values()}

    def is_loaded(self) -> bool:
        """Tell whether the models are loaded."""
        return not self._stage

    def is_stopping(self) -> bool:
        """Tell whether `drain` was called."""
        return self._stage == STOPPING

    def why_not_ready(self) -> str | None:
        """Return the reason why the service is not ready, None if it is.

        The setting `ready_when` decides whether one working model is enough.
        """
        if (error := self._health_error()) is not None:
            return error
        registry = self.loaded.registry
        failing = f"failing on {', '.join(sorted(map(name_of, self._unhealthy)))}"
        if not registry.models:
            return "without a model; /models says which were unloaded"
        if self.settings.ready_when == "any":
            return failing if self._unhealthy >= {model.id for model in registry.models.values()} else None
        if registry.left_out:
            return f"without {', '.join(each.name for each in registry.left_out)}; /models says why"
        return failing if self._unhealthy else None

    def why_model_not_ready(self, model: Model) -> str | None:
        """Return the reason why a loaded model cannot answer, None if it can."""
        return self._health_error() or (f"failing on {model.name}" if model.id in self._unhealthy else None)

    def _health_error(self) -> str | None:
        """Return the reason why no model can answer, None if there is none."""
        return self._stage or self.loaded.scheduler.health_error()

    @property
    def tokenizer_threads(self) -> int:
        """Return the number of threads in which this process tokenises."""
        return self.settings.tokenizer_threads or min(4, usable_cores())

    def check_live(self) -> None:
        """Raise NotReadyError if the engine is away and the parent process, which would start it again, does nothing."""
        silent_s = self.parent_silent_s()
        if silent_s > PARENT_SILENT_S and (error := self._health_error()) is not None:
            what = (
                f"its parent process, which starts the engine, has given no sign of life for {silent_s:.0f} s"
            )
            raise NotReadyError(f"the service is {error}; but {what}: kill it and start the service again")

    async def load(self) -> None:
        """Load the models and warm them up; the service is ready then. Raises what prevents that."""
        began = time.monotonic()
        engines = await self._open(self.settings, self.metrics)
        registry = engines.registry
        waiting = WAITING_BODIES * self.settings.max_body_bytes
        pipeline = Pipeline(
            engines.scheduler,
            self.tokenizer_threads,
            waiting,
            self.settings.max_response_bytes,
            self.settings.max_texts_per_request,
            LabelVectors(self.settings.label_cache_bytes, self.metrics.observe_labels),
        )
        in_flight = InFlightLimit(
            max(LEAST_BATCHES_IN_HAND, engines.slots) * max(engines.budgets.values(), default=1)
        )
        spool_file = SpoolFile(self.settings.stream_spool_bytes)
        self._loop = asyncio.get_running_loop()
        self._loaded = Loaded(
            registry, engines.scheduler, pipeline, engines.budgets, in_flight, spool_file, engines.manage
        )
        for model in registry.models.values():
            error = await self._check(model, WARM_UP_TIMEOUT_S)
            if error and (self.settings.strict or len(self._unhealthy) == len(registry.models)):
                raise error
        self._announce(registry)
        if engines.changes is not None:
            self._following = asyncio.create_task(self._follow(engines.changes))
        release_free_memory()
        _favour_the_event_loop()
        self._stage = "" if not self.is_stopping() else STOPPING
        LOGGER.info("ready in %.1f s: %d models", time.monotonic() - began, len(registry.models))

    @asynccontextmanager
    async def lifespan(self, prepare: Callable[[], object]) -> AsyncIterator[None]:
        """Run `prepare` in a thread and then load the models, in the background; close at the end.

        Connections are accepted from when the block is entered. A successor enters it with its models, since others accept
        on the same socket meanwhile.
        """
        loading = asyncio.create_task(self._load_and_report(prepare))
        try:
            accept_at = time.monotonic() + (ACCEPT_AFTER_S if self.is_successor else 0)
            while not (loading.done() or self.is_stopping()) and time.monotonic() < accept_at:
                await asyncio.wait([loading], timeout=ACCEPT_POLL_S)
            yield
        finally:
            loading.cancel()
            await asyncio.wait([loading])
            await self.close()

    async def _load_and_report(self, prepare: Callable[[], object]) -> None:
        try:
            await asyncio.to_thread(prepare)
            await self.load()
        except Exception as error:
            self.on_failure(error)
        else:
            self.on_ready()

    async def warm_up(self, model: Model, timeout_s: float) -> None:
        """Run one text through tokenizer, queue and engine."""
        async with asyncio.timeout(timeout_s):
            await self.loaded.pipeline.warm_up(model, time.monotonic() + timeout_s)

    async def _check(self, model: Model, timeout_s: float) -> Exception | None:
        """Note whether a model fails on the warm-up text, and return the error if it does."""
        ended = self.loaded.scheduler.engines_ended
        try:
            await self.warm_up(model, timeout_s)
        except Exception as error:
            if self._is_inconclusive(error, model, ended):
                return None
            LOGGER.error("model %s fails on the warm-up text: %r", model.name, error)
            self._unhealthy.add(model.id)
            return error
        self._unhealthy.discard(model.id)
        return None

    def _is_inconclusive(self, error: Exception, model: Model, ended: int) -> bool:
        """Tell whether a failure says nothing about the model that is served now.

        The queue was full of others' requests, the model is no longer served, or its engine ended and the text waited in
        vain; `ended` is the number of engines that had ended before.
        """
        refusals = QueueFullError | ModelLeftOutError | ModelReplacedError
        if isinstance(error, refusals) or model not in self.loaded.registry.models.values():
            return True
        return self.loaded.scheduler.engines_ended > ended and not isinstance(error, EngineError)

    def record(self, context: RequestContext, endpoint: str, status: int) -> None:
        """Record the metrics of a finished request."""
        metrics, model, seconds = self.metrics, context.model, context.seconds
        taken_s = time.monotonic() - context.began
        series = metrics.series
        if context.grant is not None:
            series(metrics.requests_by_key, context.grant.name, str(status)).inc()
            series(metrics.tokens_by_key, context.grant.name).inc(
                context.tokens if status == HTTPStatus.OK else 0
            )
        series(metrics.request_duration, endpoint, model, str(status)).observe(taken_s)
        if "tokenize" in seconds:
            series(metrics.tokenize_duration, model).observe(seconds["tokenize"])
        if "inference" in seconds:
            series(metrics.queue_duration, model).observe(seconds["queue"])
            if status == HTTPStatus.OK:
                series(metrics.tokens, model).inc(context.tokens)
                metrics.observe_texts(model, context.version, context.lengths, context.truncated)
                metrics.observe_results(model, context.version, context.outcomes)

    def count_problem(self, error: Exception, *, asks_for_result: bool = True) -> ProblemError:
        """Return the problem of an error, counted by its reason; what is the service's fault is its cause, for the log.

        A probe or a page that finds the service not ready asks for no result and is not counted.
        """
        problem = problem_of(error)
        if problem.reason and (asks_for_result or problem.reason != "not_ready"):
            self.metrics.requests_rejected.labels(problem.reason).inc()
        if problem.status == 500 and problem is not error:
            problem.__cause__ = error
        return problem

    def shadow(
        self, model: Model, context: RequestContext, run: Callable[[RequestContext], Awaitable[object]]
    ) -> None:
        """Have an answered request read by another version too, and compare the labels.

        One at a time: others are dropped.
        """
        count = partial(self.metrics.shadow_requests.labels, model.name, model.bundle.manifest.version)
        if self._shadowing is not None and not self._shadowing.done():
            count("dropped").inc()
            return
        own = RequestContext(context.request_id, context.endpoint, time.monotonic(), context.timeout_ms)
        own.is_shadow = True

        async def compare() -> None:
            try:
                await run(own)
                labels, others = ([label for label, _ in each.outcomes] for each in (context, own))
                count("same" if labels == others else "differ").inc()
            except (QueueFullError, NotReadyError):
                count("dropped").inc()
            except Exception as error:
                LOGGER.debug("shadow traffic failed: %r", error)
                count("failed").inc()

        self._shadowing = asyncio.create_task(compare())

    def probe_soon(self) -> None:
        """Run the warm-up text through suspect models, in the background.

        A model that fails on some request stays in service; only failing on the warm-up text makes it unhealthy. It
        recovers by the same probe, without real traffic. While no engine answers there is nothing to probe.
        """
        if self._health_error() or not (self._unhealthy | self.loaded.scheduler.suspects()):
            return
        is_running = self._probe is not None and not self._probe.done()
        if not is_running and time.monotonic() - self._last_probe >= PROBE_EVERY_S:
            self._last_probe = time.monotonic()
            self._probe = asyncio.create_task(self._probe_suspects())

    def look_again(self) -> None:
        """Have the bundles looked at again, if the engine is in this process; called by a signal."""
        loaded, loop = self._loaded, self._loop
        if loaded is None or loop is None or loaded.manage is None:
            return

        def look() -> None:
            assert loaded.manage is not None
            LOGGER.info("SIGHUP: the bundles are looked at again")
            self._looking = loop.create_task(loaded.manage(LOOK_AGAIN, ""))  # type: ignore[arg-type]

        loop.call_soon_threadsafe(look)

    def drain(self) -> None:
        """Report not ready from now on; requests are still answered."""
        self._stage = STOPPING

    async def close(self) -> None:
        """Refuse waiting requests, let running batches finish, end the threads."""
        self.drain()
        for task in (self._probe, self._following, self._shadowing):
            if task is not None:
                task.cancel()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.scheduler.close()
            await loaded.pipeline.close()
        if self.sampler is not None:
            await asyncio.to_thread(self.sampler.close)

    async def _probe_suspects(self) -> None:
        suspects = self._unhealthy | self.loaded.scheduler.suspects()
        for model in self.loaded.registry.models.values():
            if model.id in suspects:
                await self._check(model, PROBE_TIMEOUT_S)

    async def _follow(self, changes: AsyncIterator[ServedModels]) -> None:
        """Take over what is served whenever that changes; a change that fails is logged, and the next is awaited."""
        while True:
            try:
                await self._take_over(await anext(changes))
            except StopAsyncIteration:
                return
            except Exception:
                LOGGER.exception("what the engine serves now could not be taken over")

    async def _take_over(self, served: ServedModels) -> None:
        """Serve what the engine serves now, and then check what is new."""
        models = served.registry.models
        before = self.loaded.registry.models
        new = [model for name, model in models.items() if before.get(name) is not model]
        self._unhealthy &= {model.id for model in models.values()}
        self._loaded = replace(self.loaded, registry=served.registry, budgets=served.budgets)
        self._announce(served.registry)
        for model in new:
            await self._check(model, WARM_UP_TIMEOUT_S)

    def _announce(self, registry: Registry) -> None:
        """Set the gauges of the models and of the bundles that were left out; those of models that are gone become 0."""
        now = self._gauges_of(registry)
        for (gauge, labels), value in {**dict.fromkeys(self._announced, 0), **now}.items():
            gauge.labels(*labels).set(value)
        self._announced = now
        models = registry.models
        self.metrics.watch_models(list(models), lambda name: self.why_model_not_ready(models[name]) is None)

    def _gauges_of(self, registry: Registry) -> dict[tuple[Gauge, tuple[str, ...]], int]:
        """Return the values of the models' gauges, by gauge and labels."""
        metrics, found = self.metrics, dict[tuple[Gauge, tuple[str, ...]], int]()
        for name, model in registry.models.items():
            manifest, task = model.bundle.manifest, model.spec.task
            is_default = str(registry.defaults.get(task) == name).lower()
            info = (name, task, manifest.version, manifest.precision, model.provider, is_default)
            found[metrics.model_info, info] = 1
            found[metrics.model_left_out, (name, task)] = 0
            found[metrics.model_fallback, (name,)] = int(bool(model.why_fallback))
            found[metrics.model_load_failed, (name,)] = 0
            found[metrics.model_ready, (name,)] = int(self.why_model_not_ready(model) is None)
        for left_out in registry.left_out:
            found[metrics.model_left_out, (left_out.name, left_out.task)] = 1
        for failed in registry.failed:
            found[metrics.model_load_failed, (failed.name,)] = 1
        return found


def _favour_the_event_loop() -> None:
    """Exempt loaded objects from garbage collection, and shorten the interpreter's switch interval.

    A full collection would block the event loop for 100 ms. A thread asks for the interpreter's lock only after it was
    held for the whole interval. numpy releases and retakes it within microseconds, which restarts the interval: with
    Python's default of 5 ms, a thread that decoded many short texts blocked the loop for up to 1 s.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def service_of(request: Request) -> Service:
    """Return the service that the request came to."""
    service = request.scope["app"].service
    assert isinstance(service, Service)
    return service
