"""Parts that all compatible APIs share: routes with their own errors, requests that ignore unknown fields, plain answers."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from bert.errors import FieldError, InvalidRequestError, NotReadyError, displayed
from bert.tasks.spec import TaskSpec
from service.engine.models import Model
from service.http import openapi
from service.http.compat.requests import CompatibleRequest, refused, validate
from service.http.lifecycle import service_of
from service.http.problems import ErrorWriter, ProblemError
from service.http.request_body import read_json
from service.http.route import JsonResponse, TaskRequest, TaskRoute
from service.pipeline.inputs import Texts, pair_count
from service.tasks.rerank import is_cross_encoder
from service.tasks.schema import Schema
from service.tasks.table import BY_ROW
from service.tasks.task import ServedTask, to_json

_DOCUMENTS = ("document", "passage")
Post = TypeVar("Post", bound=Callable[..., Awaitable[Response]])
Get = TypeVar("Get", bound=Callable[[Request], Awaitable[Response]])


def check_options(model: Model, options: CompatibleRequest, known: Collection[str]) -> None:
    """Raise InvalidRequestError for options of other tasks than the model's; null and false ask for nothing."""
    task = model.spec.task
    errors = [
        FieldError(name, f"is not an option of {task}, which {model.name!r} is for")
        for name in type(options).model_fields
        if name not in known and getattr(options, name) not in (None, False)
    ]
    if errors:
        raise InvalidRequestError(errors)


class CompatibleRoute(TaskRoute):
    """A route that reads the request of a compatible API."""

    takes_lines = False

    def parse(self, request: TaskRequest, raw: bytes) -> Schema:
        """Return the validated body."""
        return validate(self.schema, read_json(raw, request.pipeline.max_texts))


class CompatibleApi:
    """The routes of an API, and how it writes errors."""

    def __init__(
        self,
        title: str,
        description: str,
        *,
        paths: str,
        write_error: ErrorWriter,
        route_class: type[CompatibleRoute] = CompatibleRoute,
    ) -> None:
        """`paths` is a pattern of those whose errors it writes."""
        self.tag = {"name": title, "description": description}
        self._paths = re.compile(paths)
        self.write_error, self._route_class = write_error, route_class
        self._router = APIRouter(tags=[title])
        self.routes = self._router.routes
        self.keyless_routes: list[BaseRoute] = []
        """Those that need no key."""

    def owns(self, path: str) -> bool:
        """Tell whether errors at a path are this API's."""
        return self._paths.fullmatch(path) is not None

    def post(self, path: str, *others: str, answer: Any, needs_engine: bool = True) -> Callable[[Post], Post]:
        """Register a handler of requests; `answer` is the documented example, `others` are undocumented paths."""
        route_class = type("Route", (self._route_class,), {"needs_engine": needs_engine})

        def register(handler: Post) -> Post:
            request = openapi.task_request(get_type_hints(handler)["body"])
            self._add(handler, (path, *others), "POST", route_class, answer, request)
            return handler

        return register

    def get(self, path: str, *others: str, answer: Any, needs_key: bool = True) -> Callable[[Get], Get]:
        """Register a handler of GET; `answer` None documents a 200 with an empty body."""

        def register(handler: Get) -> Get:
            before = len(self.routes)
            self._add(handler, (path, *others), "GET", openapi.DirectRoute, answer, {})
            if not needs_key:
                self.keyless_routes += self.routes[before:]
            return handler

        return register

    def order(self, path: str, *, answer: Any) -> Callable[[Get], Get]:
        """Register a handler of POST that asks for no result of a model."""

        def register(handler: Get) -> Get:
            self._add(handler, (path,), "POST", openapi.DirectRoute, answer, {})
            return handler

        return register

    def _add(
        self,
        handler: Callable[..., Awaitable[Response]],
        paths: Sequence[str],
        method: str,
        route_class: type[APIRoute],
        answer: Any,
        request: dict[str, Any],
    ) -> None:
        """Register a handler at its paths, of which the first is documented."""
        for number, path in enumerate(paths):
            self._router.add_api_route(
                path,
                handler,
                methods=[method],
                route_class_override=route_class,
                include_in_schema=number == 0,
                response_class=JSONResponse if answer is not None else Response,
                responses=(openapi.success(answer) if answer is not None else openapi.EMPTY) | _ERRORS,
                openapi_extra=_with_path(request, path),
            )


_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "An error of the request, in the form of this wire."},
    "5XX": {"description": "An error of the service, in the form of this wire."},
}


def _with_path(extra: dict[str, Any], path: str) -> dict[str, Any]:
    names = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    return extra | {"parameters": [*names, *extra.get("parameters", [])]} if names else extra


def answer(content: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return a 200 with JSON."""
    response = JsonResponse(to_json(content))
    response.headers.update(headers or {})
    return response


def check_ready(request: Request, name: str | None = None) -> None:
    """Raise NotReadyError unless the service, or the named model, can answer."""
    service = service_of(request)
    service.probe_soon()
    if name is None:
        why_not = service.why_not_ready()
    elif name in service.loaded.registry.models:
        why_not = service.why_model_not_ready(service.loaded.registry.models[name])
    else:  # without the names that are loaded: these paths need no key
        raise ProblemError(404, "unknown-model", f"there is no model {displayed(name)!r}")
    if why_not is not None:
        raise NotReadyError(f"the service is {why_not}")


def task_of(model: Model) -> ServedTask[Any] | None:
    """Return what a model does with each text; None for a task whose requests hold more than lists of texts."""
    task = BY_ROW[model.spec.task]
    return task if task.has_plain_texts else None


def fields_of(model: Model) -> Sequence[str]:
    """Return the fields of texts that a model reads; none of a task that compatible APIs do not have."""
    task = task_of(model)
    return task.fields(model.spec) if task is not None else ()


def check_fields(model: Model, given: Mapping[str, Texts], where: str, options: Collection[str] = ()) -> None:
    """Raise InvalidRequestError unless the fields are those that the model reads, and their texts make pairs."""
    task = task_of(model)
    wanted = task.fields_among(model.spec, given, options) if task is not None else ()
    if set(given) != set(wanted):
        message = f"model {model.name!r} reads {' and '.join(wanted) or 'nothing that this wire has'}"
        raise refused(where, message)
    if len(wanted) == 2:
        pair_count(given[wanted[0]], given[wanted[1]])


def prompt_for(model: Model, use: str | None, field: str) -> str | None:
    """Return the name of the model's prompt for a use, as other servers call it: search_query, retrieval.passage.

    It is the prompt of that name, or of its last word; document and passage are one. "" is no prompt: of a model that has
    none, and of documents where it has one for queries only. None, no use, is the default. Raises InvalidRequestError for a
    use that none of the model's prompts is for.
    """
    prompts, last = model.spec.prompts, re.split(r"[._]", use or "")[-1]
    if use is None:
        return None
    names = (use, *(_DOCUMENTS if last in _DOCUMENTS else (last,)))
    found = next((name for name in names if name in prompts), "")
    if prompts and not found and last not in _DOCUMENTS:
        known = ", ".join(prompts)
        raise refused(field, f"is {displayed(use)!r}, and the prompts of model {model.name!r} are {known}")
    return found


def not_served(model: Model) -> InvalidRequestError:
    """Return the error of a model for a task that an API does not have."""
    return refused("model", f"{model.name!r} is for {model.spec.task}, which this wire does not have")


def error_response(problem: ProblemError, status: int, content: object, **headers: str) -> Response:
    """Return an error's response, with the problem's headers and more."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(to_json(content), status, {**problem.headers, **more}, "application/json")


EXAMPLE_INFO = {
    "model_id": "similarity",
    "model_dtype": "float32",
    "model_type": {"embedding": {"pooling": "mean"}},
    "max_input_length": 256,
    "max_client_batch_size": 512,
    "auto_truncate": True,
}
"""Example of what /info says of a model."""
DTYPES = {"fp32": "float32", "fp16": "float16", "int8": "int8"}


async def health(request: Request) -> Response:
    """Answer 200 with an empty body while the model can answer."""
    check_ready(request, request.path_params.get("model"))
    return Response()


def describe(request: Request, *, auto_truncate: bool) -> dict[str, object]:
    """Return what /info says of a model; limits and threads are those of the process that answers."""
    service = service_of(request)
    name = request.path_params.get("model")
    model = service.loaded.registry.find(name, "similarity" if name is None else None)
    spec, settings = model.spec, service.settings
    labels = {str(number): label for number, label in enumerate(spec.labels)}
    named = {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
    pooling = "splade" if spec.task == "sparse" else spec.pooling
    kind: dict[str, object] = {"embedding": {"pooling": pooling}}
    if spec.labels:
        kind = {"reranker" if is_cross_encoder(spec) else "classifier": named}
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": DTYPES[model.bundle.manifest.precision],
        "served_model_name": model.name,
        "model_type": kind,
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": spec.max_tokens,
        "max_batch_tokens": service.loaded.budgets[model.id],
        "max_batch_requests": None,
        "max_client_batch_size": _most_inputs(spec, settings.max_texts_per_request),
        "auto_truncate": auto_truncate,
        "tokenization_workers": service.tokenizer_threads,
        "version": request.app.version,
        "sha": None,
        "docker_label": None,
    }


def _most_inputs(spec: TaskSpec, max_texts: int) -> int:
    """Return how many inputs fit in a request: a pair takes two of `max_texts`, and a re-ranker's query takes one."""
    if is_cross_encoder(spec):
        return max_texts - 1
    return max_texts // 2 if spec.pair is not False else max_texts
