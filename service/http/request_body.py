"""Read a request's headers and body within limits, and validate the JSON."""

import asyncio
import itertools
import json
import time
import zlib
from collections.abc import Iterator
from functools import cache
from typing import TypeVar, get_args, get_origin

import pydantic
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Scope

from bert.encoding import is_unicode
from bert.errors import (
    MAX_FIELD_ERRORS,
    BertError,
    DeadlineExceededError,
    FieldError,
    InvalidRequestError,
    displayed,
    shown,
)
from service.http.limits import BODY_SHARE
from service.http.problems import ClientGoneError, ProblemError, field_errors
from service.pipeline.inputs import RequestContext, too_many_texts
from service.settings import ServeSettings
from service.tasks.schema import Schema

Model = TypeVar("Model", bound=Schema)
JSON = "application/json"
CODINGS = ("identity", "gzip", "x-gzip")
"""Accepted values of Content-Encoding; x-gzip means gzip (RFC 9110, 8.4.1.3)."""
GZIP = 16 + zlib.MAX_WBITS
"""zlib's `wbits` for the gzip format."""
BODY_ERROR = "body_error"
"""Key in a request's state for the ProblemError of a body that is not valid HTTP."""
LAST_PART = "last_part"
"""Key in a request's state for the time on `time.monotonic` at which a handler that responds while it still reads the body
read the last part of it."""
LINES = frozenset(
    f"application/{name}" for name in ("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "jsonlines")
)
"""Content types of many requests in one body, a line each."""
BROKEN = "is not valid Unicode: it holds half of a surrogate pair"
NO_TEXT = "must be a string"
NO_LIST = "must be a list of strings, as another item is"
NO_LISTS = "must be a list of strings, or a list of such lists"
TOO_DEEP = "the body is nested too deep: no field of any request holds more than lists of strings"
MAX_NAMES = 512
"""Maximum items of a list of names, such as labels."""
INLINE_BYTES = 2**14
"""Largest body that is parsed on the event loop, which takes at most 5 ms."""
MAX_SYNTAX_BYTES = 2**15
"""Maximum bytes outside the strings of a large body, without white space. No valid request has more, and parsing them
could hold the interpreter's lock for half a second."""
MAX_STRINGS = 2**13
"""Maximum strings in a large body, names included, besides its texts."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""UTF-8 byte order mark, which some editors add."""


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            found: str = value.decode("latin-1")
            return found
    return None


def timeout_ms(scope: Scope, limit_ms: int) -> float:
    """Return X-Timeout-Ms, at most `limit_ms`, which is the default; raises the 422 of an invalid header."""
    sent = header(scope, b"x-timeout-ms")
    if sent is None:
        return limit_ms
    if not (sent.isascii() and sent.isdigit() and int(sent[:12]) > 0):
        raise InvalidRequestError(
            [FieldError("X-Timeout-Ms", "must be a whole number of milliseconds, at least 1")]
        )
    return min(int(sent[:12]), limit_ms)


def media_type(scope: Scope) -> str:
    """Return the request's content type without its parameters."""
    return (header(scope, b"content-type") or "").partition(";")[0].strip().lower()


def content_coding(scope: Scope) -> str:
    """Return the body's encoding, one of CODINGS; raises the 415 of any other."""
    coding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if coding not in CODINGS:
        detail = "send the body as it is, or with Content-Encoding: gzip; no other encoding is known"
        raise ProblemError(415, "unsupported-media-type", detail, headers={"Accept-Encoding": "gzip"})
    return coding


def expected_size(scope: Scope) -> int:
    """Return the size that a body is said to have, 0 if it is not known or compressed."""
    length = header(scope, b"content-length") or ""
    is_plain = length.isdigit() and header(scope, b"content-encoding") in (None, CODINGS[0])
    return int(length) if is_plain else 0


async def read_body(
    request: Request, settings: ServeSettings, context: RequestContext, *, any_type: bool = False
) -> bytes:
    """Return the body, decompressed.

    Raises the 415 of a type other than JSON, unless `any_type`, or an encoding other than gzip, the 413 of a large body,
    the 408 of a slow one, the 503 of too much that all bodies hold, DeadlineExceededError if the request's deadline comes
    before that, and ClientGoneError.
    """
    if not any_type:
        _check_type(request.scope)
    coding = content_coding(request.scope)
    limit = settings.max_body_bytes
    length = header(request.scope, b"content-length") or ""
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    allowed_s, left_s = settings.body_timeout_ms / 1000, context.deadline - time.monotonic()
    try:
        async with asyncio.timeout(min(allowed_s, left_s)):
            body = await _read_bounded(request, limit)
    except TimeoutError:
        if left_s < allowed_s:
            raise DeadlineExceededError(context.timeout_ms) from None
        detail = f"the body had not arrived after {settings.body_timeout_ms} ms (body_timeout_ms)"
        raise ProblemError(408, "body-timeout", detail, headers={"Connection": "close"}) from None
    if coding == "identity":
        return body
    body = await asyncio.to_thread(gunzip, body, limit)  # 2 MB of empty blocks take 100 ms
    request.scope["state"][BODY_SHARE].hold(len(body))
    return body


def gunzip(data: bytes, limit: int) -> bytes:
    """Decompress one gzip stream; raises the 413 of more than `limit` bytes, or the 400 of invalid gzip."""
    stream = zlib.decompressobj(wbits=GZIP)
    try:
        body = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise not_gzip(str(error)) from None
    if len(body) > limit:
        raise _too_large(limit)
    if not stream.eof:
        raise not_gzip("the stream has no end")
    if stream.unused_data:
        raise not_gzip("bytes follow the stream")
    return body


def parse(model: type[Model], body: bytes, max_texts: int) -> Model:
    """Validate a body; raises the 400 of invalid JSON, or the 422 that names at most MAX_FIELD_ERRORS fields.

    Syntax, keys and lists are checked before pydantic: it creates an error for each wrong item, which takes a minute for
    a list of a million. No step holds the interpreter's lock for over 20 ms with any body of 2 MiB.
    """
    return validated(model, read_json(body, max_texts), max_texts)


def validated(model: type[Model], content: object, max_texts: int) -> Model:
    """Validate the content of a body; raises the 422 that names at most MAX_FIELD_ERRORS fields."""
    errors = _shape_errors(model, content, max_texts)
    if errors:
        raise InvalidRequestError(errors)
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as error:
        raise InvalidRequestError(field_errors(error)) from None


def read_json(body: bytes, max_texts: int) -> object:
    """Return the content of a body. Raises the 400 of invalid JSON, or the 422 of invalid Unicode or far too many values."""
    if len(body) > INLINE_BYTES:
        _check_syntax(body, max_texts)
    return _read_json(body.removeprefix(BYTE_ORDER_MARK))


def _check_syntax(body: bytes, max_texts: int) -> None:
    """Refuse a body with more strings, numbers, lists or objects than a request of `max_texts` texts can have.

    The body is split at unescaped quotes, so every other part is outside strings.
    """
    max_parts = 2 * (MAX_STRINGS + 2 * max_texts)
    parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', max_parts)
    syntax = len(b"".join(parts[::2]).translate(None, b" \t\r\n"))
    if len(parts) > max_parts or syntax > MAX_SYNTAX_BYTES + 2 * max_texts:
        _check_beginning(body)
        message = (
            f"holds far more values than a request of {max_texts} texts has (max_texts_per_request): "
            "send several requests"
        )
        raise InvalidRequestError([FieldError("body", message)])


def _check_beginning(body: bytes) -> None:
    """Refuse a body whose first bytes, as many as are cheap to parse, are malformed or nested too deep."""
    try:
        from_json(body[:MAX_SYNTAX_BYTES], allow_partial=True)
    except ValueError as error:
        if "hex escape" not in str(error):  # half of a surrogate pair is not malformed
            raise _no_json(b"", str(error)) from None


def _shape_errors(model: type[Schema], content: object, max_texts: int) -> list[FieldError]:
    """Return the errors in the body's keys, in the lengths of its lists and in the types of their items.

    A list where none belongs is left to pydantic, which names the rule.
    """
    if not isinstance(content, dict):
        return [FieldError("body", "must be an object: names and values in braces")]
    known, errors = model.model_fields, list[FieldError]()
    if not content.keys() <= known.keys():
        unknown = itertools.islice((name for name in content if name not in known), MAX_FIELD_ERRORS)
        errors = [FieldError(displayed(name), "is not a field of this request") for name in unknown]
    for name in known:
        if name not in content or (content[name] is None and not known[name].is_required()):
            continue
        value = content[name]
        has_lists = isinstance(value, list) and any(isinstance(item, list) for item in value)
        if name in model.names and not (has_lists and name in model.nested):
            errors += _names_errors(name, value)
        elif name in model.nested:
            if isinstance(value, dict):
                errors += _map_errors(name, value, max_texts)
            else:
                errors += _nested_errors(name, value, max_texts, are_names=name in model.names)
        elif isinstance(value, list) and name in _list_fields(model):
            errors += _list_errors(name, value, max_texts)
    return errors


@cache
def _list_fields(model: type[Schema]) -> frozenset[str]:
    """Return the names of the fields that take a list."""
    fields = model.model_fields.items()
    return frozenset(name for name, field in fields if _takes_list(field.annotation))


def _takes_list(annotation: object) -> bool:
    return get_origin(annotation) is list or any(map(_takes_list, get_args(annotation)))


def _names_errors(name: str, value: object) -> list[FieldError]:
    """Return the errors of a list of names, or of texts by name."""
    if not isinstance(value, dict | list):
        return [FieldError(name, f"must be a list, not {shown(value)}")]
    if len(value) > MAX_NAMES:
        return [FieldError(name, f"has {len(value)} names and may have {MAX_NAMES}")]
    if isinstance(value, dict):
        return _map_errors(name, value, MAX_NAMES)
    return _list_errors(name, value, MAX_NAMES)


def _list_errors(name: str, items: list[object], max_texts: int) -> list[FieldError]:
    if len(items) > max_texts:
        return [too_many_texts(name, len(items), max_texts)]
    wrong = (i for i, item in enumerate(items) if not isinstance(item, str))
    return [FieldError(f"{name}[{i}]", NO_TEXT) for i in itertools.islice(wrong, MAX_FIELD_ERRORS)]


def _map_errors(name: str, items: dict[str, object], max_texts: int) -> list[FieldError]:
    """Return the errors of texts by name; where no such object belongs, pydantic says so."""
    if len(items) > max_texts:
        return [too_many_texts(name, len(items), max_texts)]
    wrong = (key for key, item in items.items() if not isinstance(item, str))
    return [
        FieldError(f"{name}.{displayed(key)}", NO_TEXT) for key in itertools.islice(wrong, MAX_FIELD_ERRORS)
    ]


def _nested_errors(name: str, value: object, max_texts: int, *, are_names: bool) -> list[FieldError]:
    """Return the errors of a list of strings, or of a list of such lists, each of names where `are_names`."""
    if not isinstance(value, list):
        return [FieldError(name, NO_LISTS)]
    if not any(isinstance(item, list) for item in value):
        return _list_errors(name, value, max_texts)
    total = max(len(value), sum(len(item) for item in value if isinstance(item, list)))
    if total > max_texts:
        return [too_many_texts(name, total, max_texts)]
    errors = list[FieldError]()
    for i, item in enumerate(value):
        where = f"{name}[{i}]"
        if not isinstance(item, list):
            errors.append(FieldError(where, NO_LIST))
        else:
            errors += _names_errors(where, item) if are_names else _list_errors(where, item, max_texts)
    return errors[:MAX_FIELD_ERRORS]


def _read_json(body: bytes) -> object:
    try:
        return from_json(body)
    except ValueError as error:
        found = str(error)
    raise _no_json(body, found)


def _no_json(body: bytes, found: str) -> BertError:
    """Return the 422 of invalid Unicode, or the 400 of invalid JSON and of deep nesting.

    `found` is the fast parser's message, which does not distinguish them.
    """
    if "recursion limit" in found:
        return ProblemError(400, "malformed-json", TOO_DEEP)
    try:
        content = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _malformed(f"it is not UTF-8 (byte {error.start})")
    except (ValueError, RecursionError):
        return _malformed(found)
    names = _broken_texts(content)
    if not names and not _holds_surrogate(content):
        return _malformed(found)
    return InvalidRequestError([FieldError(name, BROKEN) for name in names or ["body"]])


def _malformed(found: str) -> ProblemError:
    return ProblemError(400, "malformed-json", f"the body is not JSON: {found}")


def not_gzip(found: str) -> ProblemError:
    """Return the 400 of a body that is not what its Content-Encoding says."""
    detail = f"the body is not valid gzip: {found}; send one complete gzip stream"
    return ProblemError(400, "malformed-json", detail)


def _broken_texts(content: object) -> list[str]:
    """Return the names of at most MAX_FIELD_ERRORS texts that hold half of a surrogate pair."""
    fields = content.items() if isinstance(content, dict) else [("body", content)]
    items = (item for name, value in fields for item in _items(displayed(name), value))
    texts = (text for where, item in items for text in _items(where, item))
    broken = (where for where, text in texts if isinstance(text, str) and not is_unicode(text))
    return list(itertools.islice(broken, MAX_FIELD_ERRORS))


def _items(where: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a list's items with their names, an object's values or bad keys, or anything else as it is."""
    if isinstance(value, list):
        yield from ((f"{where}[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, dict):
        yield from (
            (f"{where}.{displayed(key)}", item if is_unicode(key) else key) for key, item in value.items()
        )
    else:
        yield where, value


def _holds_surrogate(content: object) -> bool:
    """Tell whether any key or value holds half of a surrogate pair."""
    return not is_unicode(json.dumps(content, ensure_ascii=False))


async def _read_bounded(request: Request, limit: int) -> bytes:
    chunks, size, more = list[bytes](), 0, True
    share = request.scope["state"][BODY_SHARE]
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        # Left there, it would keep the chunks in a cycle.
        if error := request.scope["state"].pop(BODY_ERROR, None):
            raise error
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        share.hold(size)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _check_type(scope: Scope) -> None:
    if header(scope, b"content-type") == JSON:
        return
    kind = media_type(scope)
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        detail = f"send JSON with the header content-type: application/json, not {kind[:100] or 'none'!r}"
        raise ProblemError(415, "unsupported-media-type", detail)


def _too_large(limit: int) -> ProblemError:
    detail = f"the body is over {limit} bytes (max_body_bytes); send the texts in several requests"
    return ProblemError(413, "body-too-large", detail, headers={"Connection": "close"}, reason="too_large")
