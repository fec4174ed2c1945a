"""The conventions of SageMaker (/ping, /invocations), Vertex AI (routes of AIP_*) and KServe's V1 (:predict)."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, get_type_hints

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import FieldError, InvalidRequestError, displayed
from service.engine.loaded_model import Model
from service.http import responses, routes
from service.http.lifecycle import service_of
from service.http.request_body import validated
from service.http.schemas import Example, Schema
from service.http.task_route import TaskRequest
from service.http.wires import huggingface
from service.http.wires.wire import FIELDS, Wire, WireRequest, answer, check_fields, check_ready, fields_of
from service.pipeline.inputs import Texts, too_many_texts
from service.pipeline.pipeline import INLINE_RESULTS


class Invocation(huggingface.InferenceRequest):
    """Inputs of a model, as at /hf/MODEL."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    example: ClassVar[Example] = {"model": "sentiment", "inputs": "A warm film."}
    model: str | None = Field(
        None, description="Name of the model. Default: that of `task`, or the only one."
    )
    task: str | None = Field(None, description="Task whose default model answers.")


class PredictParameters(WireRequest):
    """Options of the endpoint for the model's task, such as `top_k`, which hold for all instances."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    model: str | None = Field(
        None, description="Name of the model. Default: that of `task`, or the only one."
    )
    task: str | None = Field(None, description="Task whose default model answers.")


class PredictRequest(WireRequest):
    """Texts to predict."""

    example: ClassVar[Example] = {"instances": ["A warm film.", {"text": "A dull film."}]}
    instances: list[Any] = Field(description="Texts, or objects with the fields of one text.")
    parameters: PredictParameters | None = None


WIRE = Wire(
    "cloud",
    "SageMaker's /ping and /invocations, KServe's V1, and Vertex AI's routes where AIP_* name them.",
    paths=r"/ping|/invocations|/v1/models/[^/]+:predict",
    write_error=huggingface.write_error,
)


@WIRE.get("/ping", answer=None, needs_key=False)
async def ping(request: Request) -> Response:
    """Answer 200 with an empty body while the service can answer."""
    check_ready(request)
    return Response()


@WIRE.post("/invocations", answer=[[{"label": "positive", "score": 0.99}]])
async def invocations(request: TaskRequest, body: Invocation) -> Response:
    """Run a model's task on `inputs`, as /hf/MODEL does."""
    return await huggingface.run(request, _chosen(request, body.model, body.task).name, body)


@WIRE.post(
    "/v1/models/{model}:predict",
    answer={"predictions": [{"label": "positive", "score": 0.99, "scores": [], "truncated": False}]},
)
async def predict(request: TaskRequest, body: PredictRequest) -> Response:
    """Run a model's task on each instance; a prediction is a result of this service's own endpoint."""
    parameters = body.parameters or PredictParameters()
    named = request.path_params.get("model", parameters.model)
    if parameters.model not in (None, named):
        in_path, beside = displayed(str(named)), displayed(str(parameters.model))
        message = f"is {in_path!r} in the path and {beside!r} in parameters: send one"
        raise InvalidRequestError([FieldError("model", message)])
    model = _chosen(request, named, parameters.task)
    request.context.model = model.name
    task = model.spec.task
    if task not in ENDPOINTS:
        message = f"{model.name!r} is for {task}, which this wire does not have"
        raise InvalidRequestError([FieldError("model", message)])
    texts = _columns(model, body.instances, request.max_texts)
    check_fields(model, texts, "instances")
    content: dict[str, Any] = {name: each.values for name, each in texts.items()}
    content |= {"model": model.name, **_options(model, parameters.model_extra or {})}
    prediction = PredictionRequest(request.scope, request.receive)
    prediction.begin()
    try:
        native = validated(SCHEMAS[task], content, request.max_texts)
        return await ENDPOINTS[task](prediction, native)
    except InvalidRequestError as error:
        errors = [FieldError(_place(each.field, task), each.message) for each in error.errors]
        raise InvalidRequestError(errors) from None


class PredictionRequest(TaskRequest):
    """A request to a task's own endpoint, whose results are predictions."""

    needs_json = True

    async def respond(
        self, count: int, results: Callable[[], Iterable[dict[str, Any]]], max_inline: int = INLINE_RESULTS
    ) -> Response:
        """Write the results, in a thread if they are large or more than `max_inline`."""
        return await self.pipeline.write(
            self.context, count, lambda: answer({"predictions": responses.in_parts(results())}), max_inline
        )


def vertex(environ: Mapping[str, str]) -> Wire | None:
    """Return the routes that Vertex AI names in the environment; None if it names none."""
    health, route = environ.get("AIP_HEALTH_ROUTE", ""), environ.get("AIP_PREDICT_ROUTE", "")
    wire = Wire(
        "vertex",
        "Vertex AI's routes, named by AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE.",
        paths="|".join(map(re.escape, filter(None, (health, route)))),
        write_error=huggingface.write_error,
    )
    if health:
        wire.get(health, answer=None, needs_key=False)(ping)
    if route:
        wire.post(route, answer={"predictions": []})(predict)
    return wire if health or route else None


def _chosen(request: TaskRequest, name: str | None, task: str | None) -> Model:
    """Return the named model, which must be for the task if one is given, else the task's default, else the only one."""
    registry = service_of(request).loaded.registry
    if name is None and task is None and len(registry.models) > 1:
        names = ", ".join(registry.models)
        raise InvalidRequestError([FieldError("model", f"or task is required: loaded are {names}")])
    return registry.find(name, task)


def _columns(model: Model, instances: list[Any], limit: int) -> dict[str, Texts]:
    """Return the texts of each field; an instance that is a string is the first field of its model."""
    if len(instances) > limit:
        raise InvalidRequestError([too_many_texts("instances", len(instances), limit)])
    first = next(iter(fields_of(model)), "text")
    rows = [each if isinstance(each, dict) else {first: each} for each in instances]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names[:8]:
        values = [row.get(name) for row in rows]
        if name in NAMES - TEXTS:
            where = next(i for i, row in enumerate(rows) if name in row)
            message = "is an option, which holds for all instances: send it in parameters"
            raise InvalidRequestError([FieldError(f"instances[{where}].{name}", message)])
        wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise InvalidRequestError([FieldError(f"instances[{wrong}].{name}", "must be a string")])
        columns[name] = Texts(f"instances.{name}", [str(value) for value in values], True)
    if not columns:
        raise InvalidRequestError([FieldError("instances", "has no text; send at least one")])
    return columns


def _options(model: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model's endpoint; unknown ones are ignored, those of other tasks refused."""
    given = {name: value for name, value in given.items() if value is not None and name in NAMES}
    known = SCHEMAS[model.spec.task].model_fields.keys()
    errors = [
        FieldError(f"parameters.{name}", "is a text: send it in instances")
        if name in TEXTS
        else FieldError(
            f"parameters.{name}", f"is not an option of {model.spec.task}, which {model.name!r} is for"
        )
        for name in given
        if name in TEXTS or name not in known
    ]
    if errors:
        raise InvalidRequestError(errors)
    return dict(given)


def _place(field: str, task: str) -> str:
    """Return where a request had a field of the endpoint: text[1] is that of instances[1]."""
    name, bracket, index = field.partition("[")
    is_text = name.partition(" ")[0] in FIELDS[task]  # "question and context" have too many texts
    return f"instances{bracket}{index}.{name}" if is_text else f"parameters.{field}"


ENDPOINTS: dict[str, Callable[[TaskRequest, Any], Awaitable[Response]]] = {
    "classification": routes.classify,
    "similarity": routes.embed,
    "ner": routes.ner,
    "qa": routes.qa,
    "fill_mask": routes.fill_mask,
}
"""Task → this service's own endpoint, which makes the predictions."""
SCHEMAS: dict[str, type[Schema]] = {
    task: get_type_hints(endpoint)["body"] for task, endpoint in ENDPOINTS.items()
}
TEXTS = frozenset(name for names in FIELDS.values() for name in names)
NAMES = frozenset(name for schema in SCHEMAS.values() for name in schema.model_fields)
"""Fields of any endpoint."""
