"""The conventions of SageMaker (/ping, /invocations), Vertex AI (routes of AIP_*) and KServe's V1 (:predict)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import FieldError, InvalidRequestError, displayed
from service.engine.models import Model
from service.http.compat import huggingface
from service.http.compat.base import (
    CompatibleApi,
    answer,
    check_fields,
    check_ready,
    fields_of,
    not_served,
    task_of,
)
from service.http.compat.huggingface_requests import InferenceRequest
from service.http.compat.requests import CompatibleRequest, refused
from service.http.request_body import validated
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts, too_many_texts
from service.tasks.schema import Example
from service.tasks.table import BY_ROW
from service.tasks.task import ServedTask, in_parts

TASKS = [task for task in BY_ROW.values() if task.has_plain_texts]
TEXTS = frozenset(name for task in TASKS for name in task.texts)
NAMES = frozenset(name for task in TASKS for name in task.request.model_fields)
"""Fields of any endpoint that makes predictions."""


class Invocation(InferenceRequest):
    """Inputs of a model, as at /hf/MODEL."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    example: ClassVar[Example] = {"model": "sentiment", "inputs": "A warm film."}
    model: str | None = Field(
        None, description="Name of the model. Default: that of `task`, or the only one."
    )
    task: str | None = Field(None, description="Task whose default model answers.")


class PredictParameters(CompatibleRequest):
    """Options of the endpoint for the model's task, such as `top_k`, which hold for all instances."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    model: str | None = Field(
        None, description="Name of the model. Default: that of `task`, or the only one."
    )
    task: str | None = Field(None, description="Task whose default model answers.")


class PredictRequest(CompatibleRequest):
    """Texts to predict."""

    example: ClassVar[Example] = {"instances": ["A warm film.", {"text": "A dull film."}]}
    instances: list[Any] = Field(description="Texts, or objects with the fields of one text.")
    parameters: PredictParameters | None = None


API = CompatibleApi(
    "cloud",
    "SageMaker's /ping and /invocations, KServe's V1, and Vertex AI's routes where AIP_* name them.",
    paths=r"/ping|/invocations|/v1/models/[^/]+:predict",
    write_error=huggingface.write_error,
)


@API.get("/ping", answer=None, needs_key=False)
async def ping(request: Request) -> Response:
    """Answer 200 with an empty body while the service can answer."""
    check_ready(request)
    return Response()


@API.post("/invocations", answer=[[{"label": "positive", "score": 0.99}]])
async def invocations(request: TaskRequest, body: Invocation) -> Response:
    """Run a model's task on `inputs`, as /hf/MODEL does."""
    return await huggingface.run(request, _chosen(request, body.model, body.task), body)


@API.post(
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
        raise refused("model", message)
    model = _chosen(request, named, parameters.task)
    request.context.model = model.name
    task = task_of(model)
    if task is None:
        raise not_served(model)
    max_texts = request.pipeline.max_texts
    texts = _columns(model, body.instances, max_texts)
    check_fields(model, texts, "instances", options=parameters.model_extra or {})
    content: dict[str, Any] = {name: each.values for name, each in texts.items()}
    content |= {"model": model.name, **_options(model, task, parameters.model_extra or {})}
    prediction = PredictionRequest(request.scope, request.receive)
    prediction.begin()
    try:
        native = validated(task.request, content, max_texts)
        return await prediction.respond(await task.run(prediction.call(model), native))
    except InvalidRequestError as error:
        errors = [FieldError(_place(each.field, task), each.message) for each in error.errors]
        raise InvalidRequestError(errors) from None


class PredictionRequest(TaskRequest):
    """A request for a task's own results, which are predictions."""

    needs_json = True

    def content(self, results: Iterable[Mapping[str, Any]]) -> Response:
        """Return the 200 with these results."""
        return answer({"predictions": in_parts(results)})


def vertex(environ: Mapping[str, str]) -> CompatibleApi | None:
    """Return the routes that Vertex AI names in the environment; None if it names none."""
    health, route = environ.get("AIP_HEALTH_ROUTE", ""), environ.get("AIP_PREDICT_ROUTE", "")
    api = CompatibleApi(
        "vertex",
        "Vertex AI's routes, named by AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE.",
        paths="|".join(map(re.escape, filter(None, (health, route)))),
        write_error=huggingface.write_error,
    )
    if health:
        api.get(health, answer=None, needs_key=False)(ping)
    if route:
        api.post(route, answer={"predictions": []})(predict)
    return api if health or route else None


def _chosen(request: TaskRequest, name: str | None, task: str | None) -> Model:
    """Return the named model, which must be for the task if one is given, else the task's default, else the only one."""
    registry = request.registry
    if name is None and task is None and len(registry.models) > 1:
        names = ", ".join(registry.models)
        raise refused("model", f"or task is required: loaded are {names}")
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
            raise refused(f"instances[{where}].{name}", message)
        wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise refused(f"instances[{wrong}].{name}", "must be a string")
        columns[name] = Texts(f"instances.{name}", [str(value) for value in values], True)
    if not columns:
        raise refused("instances", "has no text; send at least one")
    return columns


def _options(model: Model, task: ServedTask[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model's endpoint; unknown ones are ignored, those of other tasks refused."""
    given = {name: value for name, value in given.items() if value is not None and name in NAMES}
    known = task.request.model_fields.keys()
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


def _place(field: str, task: ServedTask[Any]) -> str:
    """Return where a request had a field of the endpoint: text[1] is that of instances[1]."""
    name, bracket, index = field.partition("[")
    is_text = name.partition(" ")[0] in task.texts  # "question and context" have too many texts
    return f"instances{bracket}{index}.{name}" if is_text else f"parameters.{field}"
