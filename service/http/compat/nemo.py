"""The GLiNER server that NeMo Guardrails asks: POST /v1/extract, and POST /v1/chat/completions as NVIDIA's NIM has it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator
from starlette.responses import Response

from bert.tasks.ner import Entity
from service.http.compat import openai
from service.http.compat.base import CompatibleApi, answer
from service.http.compat.gliner import entities
from service.http.compat.requests import CompatibleRequest, Flag, Labels, only
from service.http.route import TaskRequest
from service.pipeline.inputs import Texts
from service.tasks.ner import OPEN_EXAMPLE, Threshold
from service.tasks.schema import Example, text_size, whole
from service.tasks.task import to_json

NIM_MODEL = "nvidia/gliner-pii"
"""Name that NeMo Guardrails sends unless it is configured otherwise; the default model answers to it."""
NO_CHAT = "entities are answered, and no text is generated"
DEFAULT_LABELS = (
    *("account_number", "age", "api_key", "bank_routing_number", "biometric_identifier", "blood_type"),
    *("certificate_license_number", "city", "company_name", "coordinate", "country", "county"),
    *("credit_debit_card", "customer_id", "cvv", "date", "date_of_birth", "date_time", "device_identifier"),
    *("education_level", "email", "employee_id", "employment_status", "fax_number", "first_name", "gender"),
    *("health_plan_beneficiary_number", "http_cookie", "ipv4", "ipv6", "language", "last_name"),
    *("license_plate", "mac_address", "medical_record_number", "national_id", "occupation", "password"),
    *("phone_number", "pin", "political_view", "postcode", "race_ethnicity", "religious_belief"),
    *("sexuality", "ssn", "state", "street_address", "swift_bic", "tax_id", "time", "unique_id", "url"),
    *("user_name", "vehicle_identifier"),
)
"""The 55 kinds of personal data that NVIDIA's servers look for where a request has no labels."""


class ExtractOptions(CompatibleRequest):
    """Options that both forms of a request have."""

    labels: Labels | None = Field(None, description="Default: NVIDIA's 55 kinds of personal data.")
    threshold: Threshold | None = Field(None, description="Default: 0.5.")
    chunk_length: Annotated[int, Field(ge=1), whole(1)] | None = Field(
        None, description="Texts of any length are read whole, in the model's own windows, whatever this is."
    )
    overlap: Annotated[int, Field(ge=0), whole(0)] | None = None
    flat_ner: Flag | None = Field(
        None, description="False, the default: of entities within one another the outer one is answered."
    )


class ExtractRequest(ExtractOptions):
    """A text to find entities in."""

    example: ClassVar[Example] = OPEN_EXAMPLE
    text: str
    model: str | None = Field(None, description="Not NeMo's: name of the model.")


def _last_text(value: object) -> str:
    """Return the content of the user's last message; raises ValueError if there is none."""
    items = value if isinstance(value, list) else []
    of_user = [each.get("content") for each in items if isinstance(each, dict) and each.get("role") == "user"]
    if not of_user or not isinstance(of_user[-1], str):
        raise ValueError('must be a list with {"role": "user", "content": TEXT}, of which the last is read')
    return of_user[-1]


class ChatRequest(ExtractOptions):
    """A chat whose last message of the user is a text to find entities in."""

    example: ClassVar[Example] = {
        "model": NIM_MODEL,
        "messages": [{"role": "user", "content": OPEN_EXAMPLE["text"]}],
        "labels": OPEN_EXAMPLE["labels"],
    }
    messages: Annotated[str, PlainValidator(_last_text, json_schema_input_type=list[dict[str, str]])]
    model: str | None = Field(None, description=f"{NIM_MODEL}, or the name of a loaded model.")
    stream: Annotated[Any, only(False, why=NO_CHAT)] = None
    n: Annotated[Any, only(1, why=NO_CHAT)] = None
    tools: Annotated[Any, only([], why=NO_CHAT)] = None
    functions: Annotated[Any, only([], why=NO_CHAT)] = None
    logprobs: Annotated[Any, only(False, why=NO_CHAT)] = None
    response_format: Annotated[Any, only({"type": "text"}, why=NO_CHAT)] = None


API = CompatibleApi(
    "nemo",
    "What NeMo Guardrails asks of a GLiNER server: `server_endpoint` is `/v1/extract` or `/v1/chat/completions`.",
    paths="/v1/(extract|chat/completions)",
    write_error=openai.write_error,
)
_TAGGED = "[Ada Lovelace](person) took the train."


@API.post(
    "/v1/extract",
    answer={
        "total_entities": 1,
        "entities": [
            {
                "value": "Ada Lovelace",
                "suggested_label": "person",
                "start_position": 0,
                "end_position": 12,
                "score": 0.98,
            }
        ],
        "tagged_text": _TAGGED,
    },
)
async def extract(request: TaskRequest, body: ExtractRequest) -> Response:
    """Find the entities of the request's labels, or personal data, and write them into the text."""
    found = await _find(request, body, body.model, body.text, 1)
    names = ("value", "suggested_label", "start_position", "end_position", "score")
    return await request.write(len(found), lambda: answer(_content(body.text, found, names)))


@API.post(
    "/v1/chat/completions",
    answer={
        "id": "chatcmpl-3f2a9c0d1e4b5a69",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "gliner-pii",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": '{"total_entities": 0, "entities": []}'},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 22, "completion_tokens": 0, "total_tokens": 22},
    },
)
async def complete(request: TaskRequest, body: ChatRequest) -> Response:
    """Find entities as /v1/extract does; the answer is JSON in a chat's message. No other chat is answered."""
    text = body.messages
    found = await _find(request, body, None if body.model == NIM_MODEL else body.model, text, 2)
    context = request.context

    def write() -> Response:
        content = to_json(_content(text, found, ("text", "label", "start", "end", "score"))).decode()
        message = {"role": "assistant", "content": content}
        tokens = context.tokens
        return answer(
            {
                "id": f"chatcmpl-{context.request_id}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": context.model,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
            }
        )

    return await request.write(len(found), write)


async def _find(
    request: TaskRequest, body: ExtractOptions, model: str | None, text: str, times: int
) -> list[Entity]:
    """Return the entities, none within another; `times` is how often the answer's JSON is escaped."""
    asked = {
        "text": text,
        "labels": list(DEFAULT_LABELS) if body.labels is None else body.labels,
        "threshold": body.threshold,
        "flat": bool(body.flat_ner),
    }
    call, found = await entities(request, model, asked)
    # The entities stand in the tagged text too. A quotation mark that is escaped twice takes twice the bytes.
    size = times * (2 * request.context.response_bytes + text_size(text))
    call.note_size(Texts.of("text", text), size)
    return list(_outer(found))


def _outer(found: Iterable[Entity]) -> Iterator[Entity]:
    """Yield the entities that are not within another, in the text's order."""
    end = 0
    for each in sorted(found, key=lambda each: (each.start, -each.end)):
        if each.end > end:
            yield each
            end = each.end


def _content(text: str, found: Sequence[Entity], names: Sequence[str]) -> dict[str, object]:
    """Return the entities under these names, and the text with each written as [text](label)."""
    parts, end = list[str](), 0
    for each in found:
        parts += [text[end : each.start], f"[{each.text}]({each.label})"]
        end = each.end
    rows = [
        dict(zip(names, (each.text, each.label, each.start, each.end, each.score), strict=True))
        for each in found
    ]
    return {"total_entities": len(rows), "entities": rows, "tagged_text": "".join([*parts, text[end:]])}
