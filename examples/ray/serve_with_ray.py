"""Serve bundles on a Ray cluster or on one machine: the service in many replicas, more of them while texts wait.

    pip install "ray[serve]"    # beside this project, on every node
    serve start --proxy-location HeadOnly --http-host 0.0.0.0
    serve run --working-dir examples/ray --app-dir examples/ray serve_with_ray:app bundles=/srv/bundles max_replicas=8

Arguments are Options, any setting of bert-serve and any field of Ray's AutoscalingConfig. docs/howto/ray-serve.md says more.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel, Field
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from bert.errors import ConfigError
from service import logs
from service.cli import check_settings
from service.engine.bundle_folders import find_bundles
from service.exports.store import url_of
from service.http.app import create_app
from service.http.problems import ProblemError, problem_response
from service.settings import ServeSettings
from service.workers.open_models import open_models

LOGGER = logging.getLogger("ray.serve")
LOST = (NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError)
"""Errors of a replica that is gone or cannot be reached, and of a response that was lost with its node."""
ATTEMPTS = 4
"""Replicas that are asked before a request fails."""
HEAD = "node:__internal_head__"  # Ray's resource of the head node
SCOPE = ("method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client", "server")
"""Keys of an ASGI scope that a replica gets."""
HTTP = {"type": "http", "http_version": "1.1", "asgi": {"version": "3.0"}}
QUIET = {"enable_access_log": False}
"""Ray writes a line for each request in each process that it passes; the setting `access_log` writes the service's."""
MAX_ONGOING = 1000
"""Requests in a replica at once. Its own queue is bounded in tokens, and batches are made of what waits there."""


class Options(BaseModel, extra="allow"):
    """Arguments of `app` besides the settings of bert-serve and the fields of AutoscalingConfig."""

    cpus: int = Field(1, ge=1)
    """Cores of a replica: batches at once."""
    gpus: float = Field(0, ge=0)
    queued_tokens: int = Field(4096, ge=1)
    """Tokens that may wait in each replica; with more there will be more replicas."""
    busy: float = Field(0.7, gt=0, le=1)
    """Share of its time that the engine of each replica may work; with more there will be more replicas."""


class Wanted:
    """Autoscaling policy: as many replicas as keep waiting tokens and working engines within bounds."""

    def __init__(self, queued_tokens: int, busy: float) -> None:
        """Take the bounds of a replica."""
        self._bounds = {"queued_tokens": queued_tokens, "busy": busy}

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas, which Ray rounds up and keeps within its limits and delays."""
        found = context.aggregated_metrics or {}
        return max(sum(found.get(name, {}).values()) / most for name, most in self._bounds.items()), {}


@serve.deployment(max_ongoing_requests=MAX_ONGOING, max_constructor_retry_count=3, logging_config=QUIET)
class Replica:
    """The service in one process, with its queue, limits, keys and errors; requests come from `Ingress`."""

    async def __init__(self, settings: ServeSettings) -> None:
        """Load the bundles. Raises BertError for wrong settings or bundles."""
        logs.configure(settings.log_level, settings.log_format)
        found = find_bundles(settings.bundles, strict=settings.strict)
        check_settings(settings, found)
        self._app = create_app(settings, partial(open_models, found=found))
        await asyncio.to_thread(self._app.openapi)
        await self._app.service.load()
        self._slots, self._looked, self._engine_s = settings.engine_slots or 1, time.monotonic(), 0.0

    async def answer(
        self, scope: Mapping[str, Any], body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return status, headers and body of the response to a request."""
        left, sent = [{"type": "http.request", "body": body}], list[Message]()

        async def receive() -> Message:  # Ray cancels the call if the client leaves
            return left.pop() if left else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app({**scope, **HTTP}, receive, send)
        start, *parts = sent
        return start["status"], start["headers"], b"".join(part.get("body", b"") for part in parts)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `Wanted` sums: waiting tokens, and the working share of the engine since the last call."""
        metrics, now = self._app.service.metrics, time.monotonic()
        metrics.note_queues()
        engine_s, passed_s = total(metrics.inference_duration, "_sum"), now - self._looked
        busy = (engine_s - self._engine_s) / passed_s / self._slots
        self._engine_s, self._looked = engine_s, now
        return {"queued_tokens": total(metrics.queue_tokens), "busy": busy}

    async def check_health(self) -> None:
        """Raise if the engine hangs: Ray then starts another replica."""
        if error := self._app.service.loaded.scheduler.health_error():
            raise RuntimeError(error)


def total(metric: Any, suffix: str = "") -> float:
    """Return the sum of a metric's samples whose names have a suffix."""
    return sum(
        each.value for family in metric.collect() for each in family.samples if each.name.endswith(suffix)
    )


@serve.deployment(
    max_ongoing_requests=MAX_ONGOING,
    ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
    logging_config=QUIET,
)
class Ingress:
    """Hands requests to replicas, and again to another one if a replica is lost. It runs on the head node."""

    def __init__(self, replicas: DeploymentHandle, timeout_s: float, max_body_bytes: int) -> None:
        """Take the limits of a request too."""
        self._replicas, self._timeout_s, self._max_body_bytes = replicas, timeout_s, max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """Return a replica's response, or the 504 or 503 of none."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(request)
        except TimeoutError:
            detail = f"no replica answered within {self._timeout_s:g} s (request_timeout_ms)"
            problem = ProblemError(504, "deadline-exceeded", detail)
        except LOST as error:
            detail = f"{ATTEMPTS} replicas were lost while they had this request: {type(error).__name__}"
            problem = ProblemError(503, "not-ready", detail, headers={"Retry-After": "1"})
        return problem_response(problem, request.headers.get("x-request-id", ""))

    async def _ask(self, request: Request) -> Response:
        """Ask one replica after the other; raises the error of the last one if all are lost."""
        body = await self._body(request)
        scope = {name: request.scope[name] for name in SCOPE if name in request.scope}
        for retries in range(ATTEMPTS):
            try:
                status, headers, content = await self._replicas.answer.remote(scope, body)
                break
            except LOST as error:
                LOGGER.warning("replica lost, attempt %d of %d: %r", retries + 1, ATTEMPTS, error)
                if retries + 1 == ATTEMPTS:
                    raise
        response = Response(content, status)
        response.raw_headers = [*headers, (b"x-retries", b"%d" % retries)] if retries else headers
        return response

    async def _body(self, request: Request) -> bytes:
        """Return the body, or just so much of it that the replica refuses it with its 413."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body_bytes:
                break
        return bytes(body)


def app(options: Options) -> Application:
    """Return the application. Raises ValidationError for wrong options, ConfigError for models without a folder."""
    more = dict(options.model_extra or {})
    scaling = {name: more.pop(name) for name in AutoscalingConfig.model_fields if name in more}
    settings = ServeSettings(**{"frontends": 0, **more})
    for name in [*settings.model, *filter(None, map(url_of, settings.bundles))]:
        raise ConfigError(f"{name}: replicas export and fetch nothing; name folders of bundles instead")
    if not options.gpus and settings.engine_slots is None:
        # Ray counts the cores of a replica but does not bind it to them, so the engine is told.
        settings = settings.model_copy(update={"engine_slots": options.cpus, "engine_threads_per_slot": 1})
    policy = AutoscalingPolicy(
        policy_function=Wanted, policy_kwargs=options.model_dump(include={"queued_tokens", "busy"})
    )
    timeout_s = settings.request_timeout_ms / 1000
    replicas = Replica.options(
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        # The largest value within the look-back: a moment without a queue takes no replica away.
        autoscaling_config={"aggregation_function": "max", **scaling, "policy": policy},
        graceful_shutdown_timeout_s=timeout_s + 5,
    )
    return Ingress.bind(replicas.bind(settings), timeout_s, settings.max_body_bytes)
