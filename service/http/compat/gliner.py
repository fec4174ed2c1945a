"""gliner.serve's POST /gliner: what GLiNERClient sends, for models that take labels of a request."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from starlette.responses import Response

from bert.tasks.ner import Entity
from service.http.compat.base import CompatibleApi, answer, error_response
from service.http.compat.requests import CompatibleRequest, Flag, Labels, only
from service.http.problems import ProblemError
from service.http.request_body import validated
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.ner import OPEN_EXAMPLE, OPEN_NER, NerRequest, Threshold, entities_of_labels
from service.tasks.schema import Example
from service.tasks.task import Call, in_parts

NO_RELATIONS = "entities are found, and no relations between them"


class GlinerRequest(CompatibleRequest):
    """A text, and the labels of the entities to find in it."""

    example: ClassVar[Example] = OPEN_EXAMPLE
    text: str
    labels: Labels
    threshold: Threshold | None = Field(None, description="Default: 0.5.")
    flat_ner: Flag = True
    multi_label: Flag = False
    relations: Annotated[Any, only([], why=NO_RELATIONS)] = None
    relation_threshold: Annotated[Any, only(why=NO_RELATIONS)] = None
    adapter_id: Annotated[Any, only(why="models have no adapters; /gliner/MODEL names a model")] = None


def write_error(problem: ProblemError, request_id: str) -> Response:
    """Return an error in gliner.serve's form; bad fields are a 400."""
    status = 400 if problem.status == 422 else problem.status
    return error_response(problem, status, {"error": problem.detail})


API = CompatibleApi(
    "gliner",
    "gliner.serve's POST /gliner; the client's `route_prefix` may name a model, /gliner/MODEL.",
    paths=r"/gliner(/[^/]*)?",
    write_error=write_error,
)


@API.post(
    "/gliner",
    "/gliner/{model}",
    answer={"entities": [{"start": 0, "end": 12, "text": "Ada Lovelace", "label": "person", "score": 0.98}]},
)
async def find(request: TaskRequest, body: GlinerRequest) -> Response:
    """Find the entities of the request's labels, in a text of any length."""
    asked = {
        "text": body.text,
        "labels": body.labels,
        "threshold": body.threshold,
        "flat": body.flat_ner,
        "multi_label": body.multi_label,
    }
    _, found = await entities(request, request.path_params.get("model"), asked)
    rows = (
        {"start": each.start, "end": each.end, "text": each.text, "label": each.label, "score": each.score}
        for each in found
    )
    return await request.write(len(found), lambda: answer({"entities": in_parts(rows)}))


async def entities(
    request: TaskRequest, model: str | None, asked: Mapping[str, object]
) -> tuple[Call, list[Entity]]:
    """Return the entities of one text and the call that found them; `asked` are fields of /ner.

    Raises what /ner does; `model` None is the default of the models that take labels.
    """
    native = validated(NerRequest, dict(asked), request.pipeline.max_texts)
    call, text = request.find(model, OPEN_NER), Texts.of("text", native.text)
    call.check_count(text)
    (found,) = await entities_of_labels(call, text, native)
    return call, found
