"""The Open Inference Protocol v2 over HTTP, as KServe's and Triton's clients speak it, at /v2."""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from bert.errors import UnknownModelError, displayed
from service.engine.models import Model
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
from service.http.compat.oip_tensors import HEADER, InferRequest, Output, fill
from service.http.compat.requests import CompatibleRequest, Flag, only, refused, validate
from service.http.lifecycle import service_of
from service.http.problems import ProblemError
from service.http.request_body import header, read_json
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.classification import classify
from service.tasks.fill_mask import Candidates, fill_masks, mask_rows
from service.tasks.ner import entities
from service.tasks.qa import answers
from service.tasks.schema import Schema
from service.tasks.task import embed, in_parts, prompted, to_json


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
    """Return the protocol's error; bad fields are a 400."""
    return error_response(
        problem, 400 if problem.status == 422 else problem.status, {"error": problem.detail}
    )


API = CompatibleApi(
    "oip",
    "Open Inference Protocol v2 for KServe's and Triton's HTTP clients, with binary tensors.",
    paths=r"/v2(/.*)?",
    write_error=write_error,
    route_class=InferRoute,
)
_TEXT = {"name": "text", "datatype": "BYTES", "shape": [-1]}
_LABEL = {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["positive"]}


@API.get("/v2", answer={"name": "bert-serve", "version": "0.1.0", "extensions": ["binary_tensor_data"]})
async def server(request: Request) -> Response:
    """Describe the server."""
    return answer(
        {"name": "bert-serve", "version": request.app.version, "extensions": ["binary_tensor_data"]}
    )


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
    return answer({"models": list(service_of(request).loaded.registry.models)})


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
    version, form = model.bundle.manifest.version, FORMS.get(model.spec.task)
    return answer(
        {
            "name": model.name,
            "versions": [version],
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
        _model(request)
    except UnknownModelError:  # without the version that is loaded: this path needs no key
        asked = f"{name}/{request.path_params['version']}"
        raise ProblemError(404, "unknown-model", f"there is no model {displayed(asked)!r}") from None
    return answer({"name": name, "ready": True})


@API.post(
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    answer={"model_name": "sentiment", "model_version": "1", "outputs": [_LABEL]},
)
async def infer(request: TaskRequest, body: InferRequest) -> Response:
    """Run the model's task; numbers can come back in binary."""
    model = _model(request)
    request.context.model = model.name
    body.check()
    fields = {tensor.name: Texts(tensor.name, tensor.data, True) for tensor in body.inputs}
    check_fields(model, fields, "inputs")
    request.call(model).check_count(*fields.values())
    form = FORMS.get(model.spec.task)
    if form is None:
        raise not_served(model)
    options = validate(Options, body.parameters)
    check_options(model, options, form.options)
    outputs = await form.run(request, model, fields, options)
    if body.outputs:
        unknown = {wanted.name for wanted in body.outputs} - {output.name for output in outputs}
        if unknown:
            known = ", ".join(output.name for output in outputs)
            raise refused("outputs", f"{displayed(min(unknown))!r} is none of the model's: {known}")
        wanted = [wanted.name for wanted in body.outputs]
        outputs = [output for output in outputs if output.name in wanted]
    count = max(output.shape[0] for output in outputs)
    return await request.write(count, lambda: _written(model, body, outputs), 32)


class Options(CompatibleRequest):
    """Parameters of a request."""

    top_k: Candidates | None = None
    truncate: Flag = False
    prompt_name: str | None = None
    priority: Annotated[Any, only(0, why="all requests have one priority")] = None
    timeout: Annotated[Any, only(why="send the header X-Timeout-Ms")] = None
    sequence_id: Annotated[Any, only(0, "", why="models keep nothing from one request to the next")] = None


async def _classify(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: Options
) -> list[Output]:
    text, pair = fields["text"], fields.get("text_pair")
    found, _ = await classify(request.call(model), text, pair, truncate=options.truncate)
    labels = model.spec.labels
    by_label = [dict(each.scores) for each in found]
    scores = np.array([[each[label] for label in labels] for each in by_label], np.float32)
    return [
        Output("label", [each.label for each in found]),
        Output("score", np.array([each.score for each in found], np.float32)),
        Output("scores", scores, {"labels": json.dumps(labels)}),
    ]


async def _embed(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: Options
) -> list[Output]:
    text = prompted(fields["text"], model, options.prompt_name)
    embedded = await embed(request.call(model), text, truncate=options.truncate)
    return [Output("embedding", np.ascontiguousarray(embedded.vectors, np.float32))]


async def _answers(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: Options
) -> list[Output]:
    question, context = fields["question"], fields["context"]
    found = await answers(request.call(model), question, context, top_k=1, max_answer_tokens=None)
    starts = [-1 if each.start is None else each.start for each in found]
    ends = [-1 if each.end is None else each.end for each in found]
    texts = await request.write(len(found), lambda: [each.answer or "" for each in found])
    return [
        Output("answer", texts),
        Output("score", np.array([each.score for each in found], np.float32)),
        Output("start", np.array(starts, np.int64)),
        Output("end", np.array(ends, np.int64)),
    ]


async def _entities(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: Options
) -> list[Output]:
    found = await entities(request.call(model), fields["text"])
    count = len(found) + sum(map(len, found))
    texts = await request.write(count, lambda: [_json(in_parts(each)) for each in found])
    return [Output("entities", texts)]


async def _fill_masks(
    request: TaskRequest, model: Model, fields: Mapping[str, Texts], options: Options
) -> list[Output]:
    found = await fill_masks(request.call(model), fields["text"], top_k=options.top_k or 5)
    texts = await request.write(
        found.results, lambda: [_json(each["masks"]) for each in mask_rows(found, in_parts)]
    )
    return [Output("masks", texts)]


@dataclass(frozen=True, slots=True)
class Form:
    """What a task takes and gives here."""

    options: Collection[str]
    outputs: Callable[[Model], list[tuple[str, str, list[int]]]]
    """Returns names, datatypes and shapes. Entities and masks, of which texts have any number, are JSON."""
    run: Callable[[TaskRequest, Model, Mapping[str, Texts], Options], Awaitable[list[Output]]]


FORMS: dict[str, Form] = {
    "classification": Form(
        ("truncate",),
        lambda model: [
            ("label", "BYTES", [-1]),
            ("score", "FP32", [-1]),
            ("scores", "FP32", [-1, len(model.spec.labels)]),
        ],
        _classify,
    ),
    "similarity": Form(
        ("truncate", "prompt_name"),
        lambda model: [("embedding", "FP32", [-1, model.embedding_size or 0])],
        _embed,
    ),
    "qa": Form(
        (),
        lambda _: [
            ("answer", "BYTES", [-1]),
            ("score", "FP32", [-1]),
            ("start", "INT64", [-1]),
            ("end", "INT64", [-1]),
        ],
        _answers,
    ),
    "ner": Form((), lambda _: [("entities", "BYTES", [-1])], _entities),
    "fill_mask": Form(("top_k",), lambda _: [("masks", "BYTES", [-1])], _fill_masks),
}
"""Models' task → its form."""


def _model(request: Request) -> Model:
    """Return the path's model; raises UnknownModelError, also for another version than the loaded one."""
    model = service_of(request).loaded.registry.find(request.path_params["model"], None)
    version = request.path_params.get("version", model.bundle.manifest.version)
    if version != model.bundle.manifest.version:
        raise UnknownModelError(f"{model.name}/{version}", [f"{model.name}/{model.bundle.manifest.version}"])
    return model


def _json(value: object) -> str:
    return to_json(value).decode()


def _written(model: Model, body: InferRequest, outputs: Sequence[Output]) -> Response:
    """Return the response; arrays that are asked for in binary follow the JSON."""
    all_binary = bool(body.parameters.get("binary_data_output"))
    asked = {wanted.name: wanted.parameters.get("binary_data", all_binary) for wanted in body.outputs or []}
    tensors, binary = list[dict[str, object]](), list[bytes]()
    for output in outputs:
        parameters: dict[str, object] = dict(output.parameters or {})
        fields: dict[str, object] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if asked.get(output.name, all_binary) and isinstance(output.data, np.ndarray):
            binary.append(np.ascontiguousarray(output.data).tobytes())
            parameters["binary_data_size"] = len(binary[-1])
        else:
            fields["data"] = output.data.ravel() if isinstance(output.data, np.ndarray) else output.data
        tensors.append(fields | ({"parameters": parameters} if parameters else {}))
    content = {"model_name": model.name, "model_version": model.bundle.manifest.version, "outputs": tensors}
    if body.id is not None:
        content["id"] = body.id
    if not binary:
        return answer(content)
    head = to_json(content)
    return Response(
        b"".join([head, *binary]), headers={HEADER: str(len(head))}, media_type="application/octet-stream"
    )
