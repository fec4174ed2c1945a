"""Reading a request's body: within limits, as JSON, validated once."""

import asyncio
import json
from typing import TypeVar

import pydantic
from starlette.requests import ClientDisconnect, Request

from service.problems import ClientGoneError, FieldError, ProblemError, field_errors, unprocessable
from service.settings import ServeSettings

Model = TypeVar("Model", bound=pydantic.BaseModel)
BROKEN = "is not valid Unicode: it holds half of a surrogate pair"


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """Return the body.

    Refuses one that is no JSON by its type, too large, too slow, or cut off by the client.
    """
    _check_type(request)
    limit = settings.max_body_bytes
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            return await _read_bounded(request, limit)
    except TimeoutError:
        detail = f"the body had not arrived after {settings.body_timeout_ms} ms (body_timeout_ms)"
        raise ProblemError(408, "body-timeout", detail, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None


def parse(model: type[Model], body: bytes) -> Model:
    """Validate a body; raises the 400 of what is no JSON, or the 422 that names each field at fault."""
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
            raise unprocessable(field_errors(error)) from None
        found = str(error.errors(include_url=False, include_input=False)[0]["msg"])
    return _parse_slowly(model, body, found)


def _parse_slowly(model: type[Model], body: bytes, found: str) -> Model:
    """Tell text that is no Unicode (422, by field) from text that is no JSON (400).

    The fast parser does not.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ProblemError(
            400, "malformed-json", f"the body is not JSON: {found.removeprefix('Invalid JSON: ')}"
        ) from None
    values = content.items() if isinstance(content, dict) else [("body", content)]
    errors = [
        FieldError(where, BROKEN) for name, value in values for where in _broken_texts(str(name), value)
    ]
    raise unprocessable(errors or [FieldError("body", BROKEN)])


def _broken_texts(name: str, value: object) -> list[str]:
    """Return which texts of a field hold half of a surrogate pair."""
    if isinstance(value, list):
        return [where for i, item in enumerate(value) for where in _broken_texts(f"{name}[{i}]", item)]
    return (
        [name]
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)
        else []
    )


async def _read_bounded(request: Request, limit: int) -> bytes:
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _check_type(request: Request) -> None:
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/json" and not (sent.startswith("application/") and sent.endswith("+json")):
        detail = f"send JSON with the header content-type: application/json, not {sent[:100] or 'none'!r}"
        raise ProblemError(415, "unsupported-media-type", detail)


def _too_large(limit: int) -> ProblemError:
    detail = f"the body is over {limit} bytes (max_body_bytes); send the texts in several requests"
    return ProblemError(413, "body-too-large", detail, headers={"Connection": "close"}, reason="too_large")
