"""The conventions of SageMaker (/ping, /invocations), Vertex AI (routes of AIP_*) and KServe's V1 (:predict)."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import FieldError, InvalidRequestError
from bert.tasks.classification import Scoring
from service.engine.loaded_model import Model
from service.http import responses
from service.http.lifecycle import service_of
from service.http.schemas import Example
from service.http.task_route import TaskRequest
from service.http.wires import huggingface
from service.http.wires.wire import Wire, WireRequest, answer, check_fields, check_ready, fields_of
from service.pipeline.inputs import Texts, prompted, too_many_texts
from service.pipeline.pipeline import INLINE_RESULTS, INLINE_VECTORS

Results = Iterable[dict[str, Any]]


class Invocation(huggingface.InferenceRequest):
    """Inputs of a model, as at /hf/MODEL."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    example: ClassVar[Example] = {"model": "sentiment", "inputs": "A warm film."}
    model: str | None = Field(
        None, description="Name of the model. Default: that of `task`, or the only one."
    )
    task: str | None = Field(None, description="Task whose default model answers.")


class PredictParameters(WireRequest):
    """Parameters of a prediction."""

    top_k: int | None = Field(None, ge=1, le=100)
    max_answer_tokens: int | None = Field(None, ge=1, le=512)
    truncate: bool = False
    prompt_name: str | None = None
    model: str | None = None
    task: str | None = None


class PredictRequest(WireRequest):
    """Texts to predict."""

    example: ClassVar[Example] = {"instances": ["A warm film.", {"text": "A dull film."}]}
    instances: list[Any] = Field(description="Texts, or objects with the fields of one text.")
    parameters: PredictParameters | None = None


WIRE = Wire(
    "cloud",
    "SageMaker's /ping and /invocations, KServe's V1, and Vertex AI's routes where AIP_* name them.",
    paths=r"/ping|/invocations|/v1/models/[^/]+:predict",
    open_paths=r"/ping",
    write_error=huggingface.write_error,
)


@WIRE.get("/ping", answer={})
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
    options = body.parameters or PredictParameters()
    name = request.path_params.get("model", options.model)
    model = _chosen(request, name, options.task)
    request.context.model = model.name
    texts = _columns(model, body.instances, request.max_texts)
    check_fields(model, texts, "instances")
    request.check_count(*texts.values())
    if model.spec.task not in RUNS:
        message = f"{model.name!r} is for {model.spec.task}, which this wire does not have"
        raise InvalidRequestError([FieldError("model", message)])
    count, results = await RUNS[model.spec.task](request, model, texts, options)
    return await request.pipeline.write(
        count,
        lambda: answer({"predictions": responses.in_parts(results())}),
        INLINE_VECTORS if model.spec.task == "similarity" else INLINE_RESULTS,
    )


def vertex(environ: Mapping[str, str]) -> Wire | None:
    """Return the routes that Vertex AI names in the environment; None if it names none."""
    health, route = environ.get("AIP_HEALTH_ROUTE", ""), environ.get("AIP_PREDICT_ROUTE", "")
    wire = Wire(
        "vertex",
        "Vertex AI's routes, named by AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE.",
        paths="|".join(map(re.escape, filter(None, (health, route)))),
        open_paths=re.escape(health),
        write_error=huggingface.write_error,
    )
    if health:
        wire.get(health, answer={})(ping)
    if route:
        wire.post(route, answer={"predictions": []})(predict)
    return wire if health or route else None


def _chosen(request: TaskRequest, name: str | None, task: str | None) -> Model:
    """Return the named model, else the task's default, else the only one."""
    registry = service_of(request).loaded.registry
    if name is None and task is None and len(registry.models) > 1:
        names = ", ".join(registry.models)
        raise InvalidRequestError([FieldError("model", f"or task is required: loaded are {names}")])
    return registry.find(name, task if name is None else None)


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
        wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise InvalidRequestError([FieldError(f"instances[{wrong}].{name}", "must be a string")])
        columns[name] = Texts(f"instances.{name}", [str(value) for value in values], True)
    if not columns:
        raise InvalidRequestError([FieldError("instances", "has no text; send at least one")])
    return columns


Run = Callable[
    [TaskRequest, Model, Mapping[str, Texts], PredictParameters], Awaitable[tuple[int, Callable[[], Results]]]
]


async def _classify(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: PredictParameters
) -> tuple[int, Callable[[], Results]]:
    found, cut = await request.pipeline.classify(
        request.context,
        model,
        fields["text"],
        fields.get("text_pair"),
        Scoring(options.top_k),
        truncate=options.truncate,
    )
    return sum(len(each.scores) for each in found), lambda: responses.classifications(found, cut)


async def _embed(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: PredictParameters
) -> tuple[int, Callable[[], Results]]:
    text = prompted(fields["text"], model, options.prompt_name)
    embedded = await request.pipeline.embed(request.context, model, text, truncate=options.truncate)
    return len(fields["text"]), lambda: responses.embeddings(embedded)


async def _entities(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: PredictParameters
) -> tuple[int, Callable[[], Results]]:
    found = await request.pipeline.entities(request.context, model, fields["text"])
    return len(found) + sum(map(len, found)), lambda: responses.entities(found)


async def _answers(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: PredictParameters
) -> tuple[int, Callable[[], Results]]:
    found = await request.pipeline.answers(
        request.context,
        model,
        fields["question"],
        fields["context"],
        top_k=options.top_k or 1,
        max_answer_tokens=options.max_answer_tokens,
    )
    return len(found) * (options.top_k or 1), lambda: responses.answers(found)


async def _fill_masks(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: PredictParameters
) -> tuple[int, Callable[[], Results]]:
    found = await request.pipeline.fill_masks(
        request.context, model, fields["text"], top_k=options.top_k or 5
    )
    return found.results, lambda: responses.masks(found.texts)


RUNS: dict[str, Run] = {
    "classification": _classify,
    "similarity": _embed,
    "ner": _entities,
    "qa": _answers,
    "fill_mask": _fill_masks,
}
"""Task → what returns the number of results and makes them, as this service's own endpoints do."""
