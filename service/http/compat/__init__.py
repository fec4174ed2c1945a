"""Compatible APIs: those of other servers' clients, thin adapters over the same tasks, limits and metrics, a file each."""

import os
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from service.http.compat import (
    cloud,
    cohere,
    gliner,
    huggingface,
    nemo,
    oip,
    openai,
    rerank,
    tei,
    tei_requests,
    vllm,
)
from service.http.compat.base import CompatibleApi
from service.http.compat.requests import refused, validate
from service.http.problems import ERROR_WRITER, ErrorWriter, problem_response
from service.http.request_body import read_json, validated
from service.http.route import TaskRequest, TaskRoute, task_routes
from service.settings import ServeSettings
from service.tasks.schema import Schema
from service.tasks.task import ServedTask

APIS: dict[str, CompatibleApi] = {
    "rerank": rerank.API,
    "cohere": cohere.API,
    "cloud": cloud.API,
    "gliner": gliner.API,
    "nemo": nemo.API,
    "vllm": vllm.API,
    "openai": openai.API,
    "tei": tei.API,
    "huggingface": huggingface.API,
    "oip": oip.API,
}
"""By their names in the setting `wires`; of two that own a path, the first writes its errors."""


class CompatibleApis:
    """The compatible APIs that are on."""

    def __init__(self, settings: ServeSettings) -> None:
        """Take those that the setting names."""
        self._on = [api for name, api in APIS.items() if settings.has_wire(name)]
        if settings.has_wire("cloud") and (api := cloud.vertex(os.environ)) is not None:
            self._on.append(api)
        self.tags = [api.tag for api in self._on]
        self.routes = [route for api in self._on for route in api.routes]
        self.keyless_routes = [route for api in self._on for route in api.keyless_routes]
        """Those that need no key."""
        shapes = {"has_tei": settings.has_wire("tei"), "has_rerank": settings.has_wire("rerank")}
        self._rerank_route: type[TaskRoute] = (
            type("Route", (ByShapeRoute,), shapes) if any(shapes.values()) else TaskRoute
        )

    def routes_of(self, tasks: Sequence[ServedTask[Any]]) -> list[BaseRoute]:
        """Return the routes of this service's own endpoints."""
        return [
            route
            for task in tasks
            for route in task_routes([task], self._rerank_route if task.path == "/rerank" else TaskRoute)
        ]

    def error_writer(self, path: str) -> ErrorWriter:
        """Return what writes the errors of a path."""
        return next((api.write_error for api in self._on if api.owns(path)), problem_response)


class ByShapeRoute(TaskRoute):
    """The path /rerank, where requests with `documents` or `texts` get the answers and errors of other APIs.

    Clients of TEI and infinity, and litellm's, drop the path of their base URL and come here.
    """

    has_tei = has_rerank = True

    def parse(self, request: TaskRequest, raw: bytes) -> Schema:
        """Return a request of this service, or of the API that its field names."""
        content = read_json(raw, request.pipeline.max_texts)
        keys = content.keys() & {"candidates", "documents", "texts"} if isinstance(content, dict) else set()
        if len(keys) > 1:
            raise refused(" and ".join(sorted(keys)), "came together; send one of them")
        if "documents" in keys and self.has_rerank:
            return _other(request, rerank.DocumentsRequest, content, rerank.write_error)
        if "texts" in keys and self.has_tei:
            return _other(request, tei_requests.TeiRerankRequest, content, tei.write_error)
        return validated(self.schema, content, request.pipeline.max_texts)

    async def answer(self, request: TaskRequest, body: Schema) -> Response:
        """Return the response in the form of the request."""
        if isinstance(body, rerank.DocumentsRequest):
            return await rerank.rerank(request, body)
        if isinstance(body, tei_requests.TeiRerankRequest):
            return await tei.ranked(request, body)
        return await super().answer(request, body)


def _other(request: TaskRequest, schema: type[Schema], content: object, writer: ErrorWriter) -> Schema:
    """Return the request of another API, which also writes the errors."""
    request.scope["state"][ERROR_WRITER] = writer
    return validate(schema, content)
