"""The service's life: loading, ready, draining, closed."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bert.errors import NotReadyError, QueueFullError
from bert.tasks.fill_mask import MASK
from service import tuning
from service.call import Call
from service.cpus import usable_cores
from service.engine import CPU
from service.logs import LOGGER
from service.metrics import Metrics
from service.pipeline import Pipeline
from service.policy import FairQueue
from service.registry import Model, Registry, load_models
from service.scheduler import Scheduler, Wide
from service.settings import ServeSettings
from service.speed import Speed
from service.texts import Texts

WARM_UP_TEXT = "a"
"""Short enough for every model and vocabulary, as a question too."""
WARM_UP_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 10.0
STUCK_AFTER_S = 60.0
"""No batch takes so long; one that does means that the device is gone."""
CURVE_TOKENS = 512
LEAST_QUEUE_TOKENS, MOST_QUEUE_TOKENS = 16_384, 1_048_576
"""A request of 32 of the longest texts always finds room in an empty service."""
PROBE_EVERY_S = 5.0
STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What answers requests once it is there."""

    registry: Registry
    scheduler: Scheduler
    pipeline: Pipeline
    budgets: dict[str, int]


class Service:
    """Holds the models from load to close, and knows whether requests can be answered."""

    def __init__(self, settings: ServeSettings) -> None:
        """Nothing is loaded yet."""
        self.settings, self.metrics = settings, Metrics()
        self.metrics.ready.set_function(lambda: float(self.why_not_ready() is None))
        self._loaded: Loaded | None = None
        self._stage = "loading its models"
        self._sick: set[str] = set()
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
        """Return what keeps the service from answering, None if nothing."""
        if self._stage:
            return self._stage
        if self._sick:
            return f"failing on {', '.join(sorted(self._sick))}"
        busy_s = self.loaded.scheduler.longest_run_s()
        return f"stuck: a batch has been in the engine for {busy_s:.0f} s" if busy_s > STUCK_AFTER_S else None

    async def load(self) -> None:
        """Open the bundles, measure, warm up; then the service is ready. Raises what stands in the way."""
        settings, cores, began = self.settings, usable_cores(), time.monotonic()
        plan = tuning.plan(cores, settings.engine_slots, settings.engine_threads_per_slot)
        models = await asyncio.to_thread(
            load_models,
            settings.bundles,
            threads=plan.threads,
            wide_threads=plan.wide_slots if settings.engine_wide else 1,
            verify_hashes=settings.verify_hashes,
            workers=cores,
        )
        # Without the second sessions: those that are not worth it are forgotten with `models`.
        registry = Registry.of([replace(model, wide=None) for model in models], settings.default_models)
        speeds = await asyncio.to_thread(model_speeds, models, settings.batch_tokens, plan)
        budgets = {name: speed.budget for name, speed in speeds.items()}
        wide = await asyncio.to_thread(wide_engines, models, plan)
        queue = FairQueue(
            settings.max_queue_tokens or queue_bound(speeds.values(), settings.request_timeout_ms),
            budgets,
            speeds,
            plan.slots,
        )
        scheduler = Scheduler(
            {model.name: model.engine for model in models},
            queue,
            plan.slots,
            wide=wide,
            observe=self.metrics.observe_batch,
        )
        pipeline = Pipeline(scheduler, settings.tokenizer_threads or min(4, cores))
        self.metrics.watch_queue(lambda: queue.tokens, lambda: queue.texts)
        self._loaded = Loaded(registry, scheduler, pipeline, budgets)
        for model in registry.models.values():
            await self.warm_up(model)
            self._announce(model)
        self._stage = "" if not self.is_stopping else STOPPING
        LOGGER.info(
            "ready in %.1f s: %d models, %d engine slots of %d threads, batches of %s tokens, "
            "at most %d tokens wait",
            time.monotonic() - began,
            len(models),
            plan.slots,
            plan.threads,
            "/".join(map(str, sorted(set(budgets.values())))),
            queue.max_tokens,
        )

    async def warm_up(self, model: Model, timeout_s: float = WARM_UP_TIMEOUT_S) -> None:
        """Answer one text with a model, the whole way."""
        call = Call("warm-up", "warm-up", time.monotonic(), 1000 * timeout_s)
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

    def probe_soon(self) -> None:
        """Ask models that seem broken the warm-up text, in the background.

        Texts that an engine chokes on do not take the service out: only a model that fails on this one is sick. And it
        is well again when it answers, without real traffic.
        """
        if self._stage or not (self._sick | self.loaded.scheduler.suspects()):
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
        for name in self._sick | self.loaded.scheduler.suspects():
            try:
                await self.warm_up(self.loaded.registry.models[name], PROBE_TIMEOUT_S)
            except QueueFullError:  # too busy to be asked: it is what it was
                continue
            except Exception as error:
                LOGGER.warning("model %s fails on the warm-up text: %r", name, error)
                self._sick.add(name)
            else:
                self._sick.discard(name)

    def _announce(self, model: Model) -> None:
        manifest = model.bundle.manifest
        self.metrics.model_info.labels(
            model.name,
            manifest.task.task,
            manifest.version,
            manifest.precision,
            model.engine.provider,
            str(self.loaded.registry.defaults.get(manifest.task.task) == model.name).lower(),
        ).set(1)


def model_speeds(models: list[Model], given: int | None, plan: tuning.Plan) -> dict[str, Speed]:
    """Measure how fast each model is, and so the tokens of its batches unless they are `given`.

    Models of one shape and precision share a measurement: their cost is the same.
    """
    measured: dict[tuple[object, ...], list[tuning.Point]] = {}
    speeds: dict[str, Speed] = {}
    for model in models:
        m = model.bundle.manifest
        text_tokens = min(tuning.TEXT_TOKENS, m.max_position_embeddings)
        shape = shape_of(model)
        if shape not in measured:
            on_this_thread = plan.threads == 1 and model.engine.provider == CPU
            clock = time.thread_time if on_this_thread else time.perf_counter
            limit = max(16, min(CURVE_TOKENS, given or CURVE_TOKENS))
            measured[shape] = tuning.cost_curve(model.engine, limit, text_tokens=text_tokens, clock=clock)
        curve = measured[shape]
        speeds[model.name] = Speed.of(curve, given or tuning.knee(curve), plan.slots)
    return speeds


def wide_engines(models: list[Model], plan: tuning.Plan) -> dict[str, Wide]:
    """Measure from how many tokens a lone text is faster on several slots; models for which it never is have none.

    Models of one shape and precision share the measurement.
    """
    measured: dict[tuple[object, ...], int | None] = {}
    found: dict[str, Wide] = {}
    for model in models:
        if model.wide is None:
            continue
        shape = shape_of(model)
        if shape not in measured:
            longest = model.bundle.manifest.max_position_embeddings
            measured[shape] = tuning.wide_from(model.engine, model.wide, longest)
        from_tokens = measured[shape]
        if from_tokens is not None:
            found[model.name] = Wide(model.wide, plan.wide_slots, from_tokens)
    return found


def shape_of(model: Model) -> tuple[object, ...]:
    """Return what a model's speed depends on: models alike in it share a measurement."""
    m = model.bundle.manifest
    return (m.hidden_size, m.num_hidden_layers, m.precision, m.layout, m.max_position_embeddings)


def queue_bound(speeds: Iterable[Speed], timeout_ms: int) -> int:
    """Return the default of `max_queue_tokens`: what the fastest model can do in a request's time.

    But no less than LEAST_QUEUE_TOKENS: what a request may have must not hang on a measurement that was disturbed.
    And no more than MOST_QUEUE_TOKENS, however fast the machine: what waits is held in memory.
    """
    fastest = max(speed.tokens_per_s for speed in speeds)
    return min(MOST_QUEUE_TOKENS, max(LEAST_QUEUE_TOKENS, round(fastest * timeout_ms / 1000)))
