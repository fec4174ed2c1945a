"""The service's life: loading, ready, draining, closed."""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bert.errors import NotReadyError, QueueFullError
from bert.tasks.fill_mask import MASK
from service.cpu_count import usable_cores
from service.engine.loaded_model import Model
from service.engine.model_registry import Registry
from service.engine.onnx_engine import release_free_memory
from service.logs import LOGGER
from service.metrics import Metrics
from service.pipeline.inputs import Texts
from service.pipeline.pipeline import Pipeline
from service.pipeline.request_context import RequestContext
from service.scheduling.scheduler_protocol import SchedulerProtocol
from service.scheduling.served_models import ServedModels
from service.settings import ServeSettings

OpenModels = Callable[[ServeSettings, Metrics], Awaitable[ServedModels]]

WAITING_BODIES = 8
"""Largest bodies whose texts may wait to be tokenised."""
WARM_UP_TEXT = "a"
"""Short enough for every model and vocabulary, as a question too."""
WARM_UP_TIMEOUT_S = 60.0
WARM_UP_AGAIN_S = 0.2
PROBE_TIMEOUT_S = 10.0
PROBE_EVERY_S = 5.0
STOPPING = "stopping"
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Loaded:
    """What answers requests once it is there."""

    registry: Registry
    scheduler: SchedulerProtocol
    pipeline: Pipeline
    budgets: Mapping[str, int]


class Service:
    """Holds the models from load to close, and knows whether requests can be answered."""

    def __init__(self, settings: ServeSettings, open_models: OpenModels) -> None:
        """Nothing is loaded yet; `open_models` brings the models and what runs them."""
        self.settings, self.metrics, self._open = settings, Metrics(), open_models
        self.metrics.watch_ready(lambda: self.why_not_ready() is None)
        self._loaded: Loaded | None = None
        self._stage = "loading its models"
        self._unhealthy: set[str] = set()
        """Models that fail on the warm-up text."""
        self._last_probe = 0.0
        self._probe: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> Loaded:
        """Return what answers; raises NotReadyError while there is nothing."""
        if self._loaded is None:
            raise NotReadyError(f"the service is {self._stage}; /health/ready says when it can answer")
        return self._loaded

    @property
    def is_stopping(self) -> bool:
        """Tell whether `drain` was called."""
        return self._stage == STOPPING

    def why_not_ready(self) -> str | None:
        """Return what keeps the service from answering, None if nothing.

        Whether that takes one model or all is the setting `ready_when`.
        """
        if (error := self._health_error()) is not None:
            return error
        registry = self.loaded.registry
        failing = f"failing on {', '.join(sorted(self._unhealthy))}"
        if self.settings.ready_when == "any":
            return failing if self._unhealthy >= set(registry.models) else None
        if registry.left_out:
            return f"without {', '.join(each.name for each in registry.left_out)}; /models says why"
        return failing if self._unhealthy else None

    def why_model_not_ready(self, name: str) -> str | None:
        """Return what keeps a loaded model from answering, None if nothing."""
        return self._health_error() or (f"failing on {name}" if name in self._unhealthy else None)

    def _health_error(self) -> str | None:
        """Return what keeps all models from answering."""
        return self._stage or self.loaded.scheduler.health_error()

    async def load(self) -> None:
        """Open the models and warm up; then the service is ready. Raises what stands in the way."""
        began = time.monotonic()
        engines = await self._open(self.settings, self.metrics)
        registry = Registry.of(engines.models, engines.defaults, engines.left_out, engines.first)
        threads = self.settings.tokenizer_threads or min(4, usable_cores())
        pipeline = Pipeline(engines.scheduler, threads, WAITING_BODIES * self.settings.max_body_bytes)
        self._loaded = Loaded(registry, engines.scheduler, pipeline, engines.budgets)
        for model in registry.models.values():
            await self._first_warm_up(model)
            self._announce(model)
        self.metrics.watch_models(list(registry.models), lambda name: self.why_model_not_ready(name) is None)
        for left_out in registry.left_out:
            self.metrics.model_left_out.labels(left_out.name, left_out.task).set(1)
        release_free_memory()
        _favour_the_event_loop()
        self._stage = "" if not self.is_stopping else STOPPING
        LOGGER.info("ready in %.1f s: %d models", time.monotonic() - began, len(registry.models))

    async def warm_up(self, model: Model, timeout_s: float = WARM_UP_TIMEOUT_S) -> None:
        """Answer one text with a model, the whole way."""
        call = RequestContext("warm-up", "warm-up", time.monotonic(), 1000 * timeout_s)
        pipeline, text = self.loaded.pipeline, Texts("text", [WARM_UP_TEXT], False)
        async with asyncio.timeout(timeout_s):
            match model.spec.task:
                case "ner":
                    await pipeline.entities(call, model, text)
                case "qa":
                    await pipeline.answers(call, model, text, text, top_k=1, max_answer_tokens=None)
                case "similarity":
                    await pipeline.embed(call, model, text, truncate=True)
                case "fill_mask":
                    await pipeline.fill_masks(call, model, Texts("text", [MASK], False), top_k=1)
                case "classification":
                    pair = text if model.spec.pair else None
                    await pipeline.classify(call, model, text, pair, top_k=None, truncate=True)
                case _:
                    await pipeline.tokens(call, model, text)

    async def _first_warm_up(self, model: Model) -> None:
        """Warm up; a model that fails is not ready, and the start fails if it is `strict` or every one does."""
        try:
            await self._warm_up_patiently(model)
        except Exception as error:
            LOGGER.error("model %s fails on the warm-up text: %r", model.name, error)
            self._unhealthy.add(model.name)
            if self.settings.strict or len(self._unhealthy) == len(self.loaded.registry.models):
                raise

    async def _warm_up_patiently(self, model: Model) -> None:
        """Warm up as soon as there is room: where several processes feed an engine, the others may have filled its queue."""
        while True:
            try:
                return await self.warm_up(model)
            except QueueFullError:
                await asyncio.sleep(WARM_UP_AGAIN_S)

    def probe_soon(self) -> None:
        """Ask models that seem broken the warm-up text, in the background.

        Texts that an engine chokes on do not take the service out: only a model that fails on this one is unhealthy. And it
        is well again when it answers, without real traffic.
        """
        if self._stage or not (self._unhealthy | self.loaded.scheduler.suspects()):
            return
        is_running = self._probe is not None and not self._probe.done()
        if not is_running and time.monotonic() - self._last_probe >= PROBE_EVERY_S:
            self._last_probe = time.monotonic()
            self._probe = asyncio.create_task(self._probe_suspects())

    def drain(self) -> None:
        """Say not ready from now on; requests are still answered."""
        self._stage = STOPPING

    async def close(self) -> None:
        """Refuse what waits, let batches in the engine finish, end the threads."""
        self.drain()
        if self._probe is not None:
            self._probe.cancel()
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await loaded.scheduler.close()
            await loaded.pipeline.close()

    async def _probe_suspects(self) -> None:
        for name in self._unhealthy | self.loaded.scheduler.suspects():
            try:
                await self.warm_up(self.loaded.registry.models[name], PROBE_TIMEOUT_S)
            except QueueFullError:  # too busy to be asked: it is what it was
                continue
            except Exception as error:
                LOGGER.warning("model %s fails on the warm-up text: %r", name, error)
                self._unhealthy.add(name)
            else:
                self._unhealthy.discard(name)

    def _announce(self, model: Model) -> None:
        manifest = model.bundle.manifest
        self.metrics.model_left_out.labels(model.name, manifest.task.task).set(0)
        self.metrics.model_fallback.labels(model.name).set(int(bool(model.why_fallback)))
        self.metrics.model_info.labels(
            model.name,
            manifest.task.task,
            manifest.version,
            manifest.precision,
            model.provider,
            str(self.loaded.registry.defaults.get(manifest.task.task) == model.name).lower(),
        ).set(1)


def _favour_the_event_loop() -> None:
    """Leave what was loaded out of garbage collection, and have threads give way to the event loop early.

    A full collection would hold the loop for 100 ms. A thread that waits for the interpreter's lock asks for it after
    SWITCH_INTERVAL_S without a release; numpy releases it and takes it back in microseconds, so that with Python's
    5 ms a thread that decodes many short texts kept the loop waiting for up to 1 s.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
