"""How the endpoints look from outside: paths, schemas, examples, errors. /docs shows it."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import PlainTextResponse

from service.http import problems, routes, schemas
from service.http.endpoints import TASK_ENDPOINTS, TaskEndpoint

MODELS_EXAMPLE = {
    "models": [
        {
            "name": "sentiment",
            "version": "1",
            "task": "classification",
            "default": True,
            "labels": ["negative", "positive"],
            "problem": "single_label",
            "pair": False,
            "max_tokens": 256,
            "stride": 0,
            "precision": "fp32",
            "why_fallback": None,
            "provider": "CPUExecutionProvider",
            "batch_tokens": 128,
            "dev_score": {"accuracy": 0.91},
            "parity": {},
            "ready": True,
            "why_not_ready": None,
        }
    ],
    "left_out": [],
}

ERRORS = {
    400: ("malformed-json", "The body is not JSON in UTF-8."),
    401: ("unauthorized", "The key is missing or wrong."),
    404: (
        "unknown-model",
        "No model of that name, or none for this task, is loaded; the detail lists those that are.",
    ),
    408: ("body-timeout", "The head or the body took too long to arrive."),
    413: (
        "body-too-large",
        "The body, or the number of tokens in it, is over what the service takes at all.",
    ),
    415: (
        "unsupported-media-type",
        "The body is not declared as JSON, or has another Content-Encoding than gzip.",
    ),
    422: (
        "invalid-request",
        "A field is missing, unknown, of the wrong type or over a limit; `errors` names each.",
    ),
    429: (
        "queue-full",
        "Too much is waiting to answer in the request's time. Retry-After says when to try again.",
    ),
    431: ("headers-too-large", "Request line and headers are over 64 KiB."),
    500: ("internal", "The service failed on this request."),
    503: ("not-ready", "The service is starting or stopping, or the model's bundle was left out."),
    504: ("deadline-exceeded", "The request's deadline (X-Timeout-Ms, or the service's own) passed."),
}
"""Status → code of the example, what it means. Every task endpoint may give each."""

HEADERS = {
    "X-Request-Id": {
        "description": "The id that the client sent, or a new one.",
        "schema": {"type": "string"},
    },
    "Server-Timing": {
        "description": "Milliseconds: tokenize, queue, inference, decode, total.",
        "schema": {"type": "string"},
    },
}
READY_PARAMETER = {
    "name": "model",
    "in": "query",
    "required": False,
    "description": "Whether this model can answer; without it the service as a whole (`ready_when`).",
    "schema": {"type": "string"},
}
TIMEOUT_PARAMETER = {
    "name": "X-Timeout-Ms",
    "in": "header",
    "required": False,
    "description": "Give the request up after so many milliseconds (504).",
    "schema": {"type": "integer", "minimum": 1},
}


def add_routes(app: FastAPI) -> None:
    """Register every endpoint with its documentation."""
    for endpoint in TASK_ENDPOINTS:
        app.post(
            endpoint.path, tags=["tasks"], responses=_responses(endpoint), openapi_extra=_extra(endpoint)
        )(endpoint.handler)
    app.get(
        "/models",
        tags=["service"],
        responses={200: _ok("ModelsResponse", MODELS_EXAMPLE), 503: _problem(503)},
    )(routes.models)
    app.get("/health/live", tags=["service"], responses={200: _ok("HealthResponse", {"status": "live"})})(
        routes.live
    )
    app.get(
        "/health/ready",
        tags=["service"],
        responses={
            200: _ok("HealthResponse", {"status": "ready"}),
            404: _problem(404),
            503: _problem(503),
        },
        openapi_extra={"parameters": [READY_PARAMETER]},
    )(routes.ready)
    text = {"text/plain": {"schema": {"type": "string"}, "example": "bert_ready 1.0\n"}}
    app.get(
        "/metrics",
        tags=["service"],
        response_class=PlainTextResponse,
        responses={200: {"description": "Metrics.", "content": text}},
    )(routes.metrics)


def document(app: FastAPI, *, with_key: bool) -> dict[str, Any]:
    """Return the OpenAPI document, with the schemas that the routes refer to."""
    content = get_openapi(
        title="bert-serve", version=app.version, description=app.description, routes=app.routes, tags=TAGS
    )
    used = [endpoint.request for endpoint in TASK_ENDPOINTS] + [
        endpoint.response for endpoint in TASK_ENDPOINTS
    ]
    used += [schemas.ModelsResponse, schemas.HealthResponse, schemas.Problem]
    _, definitions = models_json_schema(
        [(model, "validation") for model in used], ref_template="#/components/schemas/{model}"
    )
    components = content.setdefault("components", {})
    components["schemas"] = definitions["$defs"]
    if with_key:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        content["security"] = [{"bearer": []}, {"key": []}]
    return content


TAGS = [
    {"name": "tasks", "description": "Each takes a string or a list, and gives a list of results in order."},
    {"name": "service", "description": "What is loaded, and how it is."},
]


def _extra(endpoint: TaskEndpoint) -> dict[str, Any]:
    content = {"schema": _ref(endpoint.request.__name__), "example": endpoint.sent}
    return {
        "requestBody": {"required": True, "content": {"application/json": content}},
        "parameters": [TIMEOUT_PARAMETER],
    }


def _responses(endpoint: TaskEndpoint) -> dict[int | str, dict[str, Any]]:
    example = {
        "model": endpoint.model,
        "results": endpoint.results,
        "usage": {"tokens": endpoint.tokens},
    }
    return {200: _ok(endpoint.response.__name__, example), **{status: _problem(status) for status in ERRORS}}


def _ok(schema: str, example: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(schema), "example": example}}
    return {"description": "The answer.", "headers": HEADERS, "content": content}


def _problem(status: int) -> dict[str, Any]:
    code, meaning = ERRORS[status]
    example = {
        "type": f"urn:bert-serve:{code}",
        "title": problems.title(status),
        "status": status,
        "detail": meaning,
        "request_id": "3f2a9c0d1e4b5a69",
    }
    content = {problems.MEDIA_TYPE: {"schema": _ref("Problem"), "example": example}}
    headers = dict(HEADERS)
    if status in (429, 503):
        headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "integer"}}
    return {"description": meaning, "headers": headers, "content": content}


def _ref(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}
