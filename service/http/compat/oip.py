"""The Open Inference Protocol v2 over HTTP, as KServe's and Triton's clients speak it, at /v2."""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import NotReadyError, UnknownModelError, displayed
from service.engine.models import Model, Registry
from service.http.compat.base import (
    CompatibleApi,
    CompatibleRoute,
    answer,
    check_fields,
    check_options,
    check_ready,
    error_response,
    fields_of,
    not_served,
)
from service.http.compat.open_inference.repository import add_repository
from service.http.compat.open_inference.tensors import HEADER, InferRequest, fill
from service.http.compat.requests import CompatibleRequest, Flag, only, refused, validate
from service.http.lifecycle import service_of
from service.http.problems import ProblemError
from service.http.request_body import header, read_json
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.fill_mask import Candidates
from service.tasks.schema import Item, Schema
from service.tasks.table import BY_ROW
from service.tasks.task import PART, ListItems, Results, in_parts, to_json


class InferRoute(CompatibleRoute):
    """A route whose bodies may end in binary tensors; Triton's client gives them no content type."""

    any_type = True

    def parse(self, request: TaskRequest, raw: bytes) -> Schema:
        """Return the request with all its texts; raises what `read_json` does, and InvalidRequestError."""
        length = header(request.scope, HEADER.encode())
        if length is None:
            size = len(raw)
        elif length.isascii() and length.isdigit() and int(length[:12]) <= len(raw):
            size = int(length[:12])
        else:
            raise refused(HEADER, f"must be a number of bytes, at most the body's {len(raw)}")
        body = validate(InferRequest, read_json(raw[:size], request.pipeline.max_texts))
        left = memoryview(raw)[size:]
        for tensor in body.inputs:
            left = fill(tensor, left, request.pipeline.max_texts)
        if len(left):
            raise refused("inputs", f"leave {len(left)} bytes of the body that belong to none of them")
        return body


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return the protocol's error; bad fields, and bundles that cannot be loaded, are a 400."""
    return error_response(
        problem, 400 if problem.status in (409, 422) else problem.status, {"error": problem.detail}
    )


API = CompatibleApi(
    "oip",
    "Open Inference Protocol v2 for KServe's and Triton's HTTP clients, with binary tensors.",
    paths=r"/v2(/.*)?",
    write_error=write_error,
    route_class=InferRoute,
)
add_repository(API)
EXTENSIONS = ["binary_tensor_data", "model_repository"]
_TEXT = {"name": "text", "datatype": "BYTES", "shape": [-1]}
_LABEL = {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["positive"]}


@API.get("/v2", answer={"name": "bert-serve", "version": "0.1.0", "extensions": EXTENSIONS})
async def server(request: Request) -> Response:
    """Describe the server."""
    return answer({"name": "bert-serve", "version": request.app.version, "extensions": EXTENSIONS})


@API.get("/v2/health/live", answer={"live": True}, needs_key=False)
async def live(request: Request) -> Response:
    """Answer while the process runs, unless only a restart of the service helps."""
    service_of(request).check_live()
    return answer({"live": True})


@API.get("/v2/health/ready", answer={"ready": True}, needs_key=False)
async def ready(request: Request) -> Response:
    """Tell whether the service can answer."""
    check_ready(request)
    return answer({"ready": True})


@API.get("/v2/models", answer={"models": ["sentiment"]})
async def models(request: Request) -> Response:
    """List the loaded models."""
    served = service_of(request).loaded.registry.models.values()
    return answer({"models": list(dict.fromkeys(model.name for model in served))})


@API.get(
    "/v2/models/{model}",
    "/v2/models/{model}/versions/{version}",
    answer={
        "name": "sentiment",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [_TEXT],
        "outputs": [],
    },
)
async def metadata(request: Request) -> Response:
    """Describe a model's tensors."""
    model = _model(request)
    registry, form = service_of(request).loaded.registry, FORMS.get(model.spec.task)
    versions = [each.bundle.manifest.version for each in registry.versions(model.name)]
    return answer(
        {
            "name": model.name,
            "versions": versions,
            "platform": "onnx_onnxv1",
            "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in fields_of(model)],
            "outputs": [
                {"name": name, "datatype": datatype, "shape": shape}
                for name, datatype, shape in (form.outputs(model) if form is not None else ())
            ],
        }
    )


@API.get(
    "/v2/models/{model}/ready",
    "/v2/models/{model}/versions/{version}/ready",
    answer={"name": "sentiment", "ready": True},
    needs_key=False,
)
async def model_ready(request: Request) -> Response:
    """Tell whether a model can answer."""
    name = str(request.path_params["model"])
    check_ready(request, name)
    try:
        why_not = service_of(request).why_model_not_ready(_model(request))
    except UnknownModelError:  # without the version that is loaded: this path needs no key
        asked = f"{name}/{request.path_params['version']}"
        raise ProblemError(404, "unknown-model", f"there is no model {displayed(asked)!r}") from None
    if why_not is not None:
        raise NotReadyError(f"the service is {why_not}")
    return answer({"name": name, "ready": True})


@API.post(
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    answer={"model_name": "sentiment", "model_version": "1", "outputs": [_LABEL]},
)
async def infer(request: TaskRequest, body: InferRequest) -> Response:
    """Run the model's task; numbers can come back in binary."""
    model = _model(request, request.registry)
    call, task = request.call(model), BY_ROW[model.spec.task]
    body.check()
    fields = {tensor.name: Texts(tensor.name, tensor.data, True) for tensor in body.inputs}
    check_fields(model, fields, "inputs")
    call.check_count(*fields.values())
    form = FORMS.get(model.spec.task)
    if form is None:
        raise not_served(model)
    options = validate(Options, body.parameters)
    check_options(model, options, form.options)
    texts = {name: text.values for name, text in fields.items()}
    given = options.model_dump(include={*form.options}, exclude_none=True)
    results = await task.run(call, task.request.model_construct(**texts, **given))
    return await request.write(results.count, lambda: _written(model, body, form, results), 32)


class Options(CompatibleRequest):
    """Parameters of a request."""

    top_k: Candidates | None = None
    truncate: Flag = False
    prompt_name: str | None = None
    priority: Annotated[Any, only(0, why="all requests have one priority")] = None
    timeout: Annotated[Any, only(why="send the header X-Timeout-Ms")] = None
    sequence_id: Annotated[Any, only(0, "", why="models keep nothing from one request to the next")] = None


def _as_list(items: Iterable[Item], size: int = PART) -> list[Item]:
    return list(items)


@dataclass(frozen=True, slots=True)
class Form:
    """Options and outputs of a task in this protocol; the outputs are columns of its results."""

    options: Collection[str]
    outputs: Callable[[Model], list[tuple[str, str, list[int]]]]
    """Returns names, datatypes and shapes. Entities and masks, of which texts have any number, are JSON."""
    listed: ListItems = in_parts


FORMS: dict[str, Form] = {
    "classification": Form(
        ("truncate",),
        lambda model: [
            ("label", "BYTES", [-1]),
            ("score", "FP32", [-1]),
            ("scores", "FP32", [-1, len(model.spec.labels)]),
        ],
        _as_list,
    ),
    "similarity": Form(
        ("truncate", "prompt_name"),
        lambda model: [("embedding", "FP32", [-1, model.embedding_size or 0])],
    ),
    "qa": Form(
        (),
        lambda _: [
            ("answer", "BYTES", [-1]),
            ("score", "FP32", [-1]),
            ("start", "INT64", [-1]),
            ("end", "INT64", [-1]),
        ],
    ),
    "ner": Form((), lambda _: [("entities", "BYTES", [-1])]),
    "fill_mask": Form(("top_k",), lambda _: [("masks", "BYTES", [-1])]),
}
"""Models' task → its form."""


def _model(request: Request, registry: Registry | None = None) -> Model:
    """Return the path's model; raises UnknownModelError, also for a version that is not loaded."""
    registry = service_of(request).loaded.registry if registry is None else registry
    name, version = request.path_params["model"], request.path_params.get("version")
    if version is None:
        return registry.find(name, None)
    model = next((each for each in registry.versions(name) if each.bundle.manifest.version == version), None)
    if model is None:
        registry.find(name, None)
        known = [f"{name}/{each.bundle.manifest.version}" for each in registry.versions(name)]
        raise UnknownModelError(f"{name}/{version}", known)
    return model


def _written(model: Model, body: InferRequest, form: Form, results: Results) -> Response:
    """Return the response; arrays that are asked for in binary follow the JSON."""
    all_binary = bool(body.parameters.get("binary_data_output"))
    asked = {wanted.name: wanted.parameters.get("binary_data", all_binary) for wanted in body.outputs or []}
    known = [name for name, _, _ in form.outputs(model)]
    if unknown := asked.keys() - set(known):
        message = f"{displayed(min(unknown))!r} is none of the model's: {', '.join(known)}"
        raise refused("outputs", message)
    rows, tensors, binary = list(results.rows(form.listed)), list[dict[str, object]](), list[bytes]()
    for name, datatype, _ in form.outputs(model):
        if asked and name not in asked:
            continue
        data, parameters = _data(model, datatype, [row[name] for row in rows]), dict[str, object]()
        tensor: dict[str, object] = {"name": name, "datatype": datatype, "shape": list(np.shape(data))}
        if name == "scores":
            parameters["labels"] = json.dumps(model.spec.labels)
        if isinstance(data, list):
            tensor["data"] = data
        elif asked.get(name, all_binary):
            binary.append(data.tobytes())
            parameters["binary_data_size"] = len(binary[-1])
        else:
            tensor["data"] = data.ravel()
        tensors.append(tensor | ({"parameters": parameters} if parameters else {}))
    content = {"model_name": model.name, "model_version": model.bundle.manifest.version, "outputs": tensors}
    if body.id is not None:
        content["id"] = body.id
    if not binary:
        return answer(content)
    head = to_json(content)
    return Response(
        b"".join([head, *binary]), headers={HEADER: str(len(head))}, media_type="application/octet-stream"
    )


def _data(model: Model, datatype: str, values: list[Any]) -> Any:
    """Return a column as an array of numbers, or as a list of texts: "" or -1 for nothing, JSON for lists of objects."""
    if datatype == "BYTES":
        texts = ("" if value is None else value for value in values)
        return [text if isinstance(text, str) else to_json(text).decode() for text in texts]
    if datatype == "INT64":
        return np.array([-1 if value is None else value for value in values], np.int64)
    if values and isinstance(values[0], list):  # scores, in the order of the model's labels
        by_label = [{each["label"]: each["score"] for each in value} for value in values]
        values = [[each[label] for label in model.spec.labels] for each in by_label]
    return np.array(values, np.float32)
