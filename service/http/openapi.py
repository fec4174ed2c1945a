"""Additions to the OpenAPI document that FastAPI derives: examples, headers, problems and API keys. /docs shows it."""

from collections.abc import Callable, Coroutine, Set
from typing import Any

from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from service.http.problems import MEDIA_TYPE, Problem, title
from service.tasks.schema import Example, Schema

NPY = "application/x-npy"
TAGS = [
    {"name": "tasks", "description": "Each takes a string or a list and returns a list of results in order."},
    {"name": "service", "description": "Loaded models, health and metrics."},
]
PROBLEMS = {
    400: ("malformed-json", "The body is not JSON in UTF-8."),
    401: ("unauthorized", "The key is missing or wrong."),
    403: ("forbidden", "The key may not use this model, or may not do this."),
    404: (
        "unknown-model",
        "No model of that name, or none for this task, is loaded; the detail lists those that are.",
    ),
    408: ("body-timeout", "The head or the body took too long to arrive."),
    413: ("body-too-large", "The body, or its number of tokens, is over the service's limit."),
    415: ("unsupported-media-type", "The body is not declared as JSON, or its Content-Encoding is not gzip."),
    422: ("invalid-request", "A field is missing, unknown, mistyped or over a limit; `errors` names each."),
    429: (
        "queue-full",
        "The queue is too long to answer in time (queue-full), or the key has used its rate (rate-limited). Retry-After "
        "says when to try again.",
    ),
    431: ("headers-too-large", "Request line and headers are over 64 KiB."),
    500: ("internal", "The service failed on this request."),
    503: ("not-ready", "The service is starting or stopping, or the model's bundle was left out."),
    504: ("deadline-exceeded", "The request's deadline passed: X-Timeout-Ms, or the service's own."),
}
"""Code and meaning of each status. Every task endpoint may return each of them."""
MORE_PROBLEMS = {
    409: ("load-failed", "What lies on disk cannot be served; the detail says why. What was served goes on."),
}
"""Those of endpoints that change what is served."""
HEADERS: dict[str, Any] = {
    "X-Request-Id": {"description": "The client's id, or a new one.", "schema": {"type": "string"}},
    "X-Model-Version": {
        "description": "Version of the model that answered, if one did.",
        "schema": {"type": "string"},
    },
    "Server-Timing": {
        "description": "Milliseconds: tokenize, queue, inference, decode, total.",
        "schema": {"type": "string"},
    },
}
NPY_HEADERS: dict[str, Any] = {
    "X-Model": {"description": "Binary only: the model that answered.", "schema": {"type": "string"}},
    "X-Usage-Tokens": {"description": "Binary only: tokens read.", "schema": {"type": "integer"}},
    "X-Truncated": {
        "description": "Binary only: indices of texts that were cut, separated by commas, at most the first 200.",
        "schema": {"type": "string"},
    },
    "X-Truncated-Count": {
        "description": "Binary only: number of texts that were cut, if any was.",
        "schema": {"type": "integer"},
    },
}
LINES_TYPE = "application/x-ndjson"
RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
TIMEOUT = {
    "name": "X-Timeout-Ms",
    "in": "header",
    "required": False,
    "description": "Time limit of the request in milliseconds; past it the response is a 504.",
    "schema": {"type": "integer", "minimum": 1},
}
READY_MODEL = {
    "name": "model",
    "in": "query",
    "required": False,
    "description": "Name of a model to ask about. Default: the service as a whole (`ready_when`).",
    "schema": {"type": "string"},
}


class DirectRoute(APIRoute):
    """A documented route whose handler gets the request as it is.

    FastAPI's own handler would read a body of any size and validate it on the event loop.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint."""
        return self.endpoint


def task_request(request: type[Schema]) -> dict[str, Any]:
    """Return what FastAPI does not know of a task's request: an example, and the header with a time limit."""
    content = {"application/json": {"example": request.example}}
    return {"requestBody": {"content": content}, "parameters": [TIMEOUT]}


def with_lines(operation: dict[str, Any]) -> dict[str, Any]:
    """Return a task's request, or its response, with the form of many lines beside JSON."""
    line = "One request, or the response to one, on each line. See docs/api.md, Many requests in one."
    content = {LINES_TYPE: {"schema": {"type": "string", "description": line}}}
    return operation | {"content": operation["content"] | content}


def success(example: Example | str, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a 200."""
    content = {media_type: {"example": example}}
    return {200: {"description": "The result.", "headers": HEADERS, "content": content}}


EMPTY: dict[int | str, dict[str, Any]] = {200: {"description": "The body is empty.", "headers": HEADERS}}
"""Documentation of a 200 without content."""


def success_with_npy(example: Example) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a 200 that is JSON or a NumPy file."""
    documented = success(example)
    documented[200]["content"] |= {NPY: {"schema": {"type": "string", "format": "binary"}}}
    documented[200]["headers"] = HEADERS | NPY_HEADERS
    return documented


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of these errors."""
    return {status: _problem(status) for status in statuses}


def _problem(status: int) -> dict[str, Any]:
    code, meaning = (PROBLEMS | MORE_PROBLEMS)[status]
    example = {
        "type": f"urn:bert-serve:{code}",
        "title": title(status),
        "status": status,
        "detail": meaning,
        "request_id": "3f2a9c0d1e4b5a69",
    }
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}}
    headers = HEADERS | RETRY_AFTER if status in (429, 503) else HEADERS
    return {"description": meaning, "headers": headers, "content": content}


def complete(document: dict[str, Any], open_paths: Set[str], *, with_key: bool) -> None:
    """Add the problems' schema, and the ways to send an API key, to FastAPI's document.

    GET of the `open_paths` needs no key.
    """
    template = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(Problem, "validation")], ref_template=template)
    document["components"]["schemas"] |= schemas["$defs"]
    if with_key:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        document["security"] = [{"bearer": []}, {"key": []}]
        for path in open_paths & document["paths"].keys():
            document["paths"][path]["get"]["security"] = []
