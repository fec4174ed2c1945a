"""The HTTP reference: Markdown made of the OpenAPI document of the service."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from service.http.app import create_app
from service.settings import ServeSettings

INTRODUCTION = """\
# HTTP reference

Every endpoint, field and limit, made of the service's own OpenAPI document ([openapi.json](openapi.json)).
[The API](../api.md) says how they behave, and [Other clients](../wires.md) which packages speak them.
A running service has the same at `/docs`, and the document at `/openapi.json`.

A field in **bold** is required; the others may be left out, or null.
Responses carry the headers `X-Request-Id` and `Server-Timing`.
"""
TITLES = {
    "cloud": "SageMaker and Vertex AI",
    "huggingface": "Hugging Face",
    "oip": "Open Inference Protocol",
    "openai": "OpenAI",
    "rerank": "Cohere and Jina",
    "tei": "text-embeddings-inference",
}
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document of a service with its default settings."""

    async def no_models(*_: object) -> Any:
        raise NotImplementedError

    # Given, not read from the environment of whoever builds the site.
    return create_app(ServeSettings.model_construct(), no_models).openapi()


def markdown(document: dict[str, Any]) -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for tag in document["tags"]:
        parts.append(
            f"## {TITLES.get(tag['name'], tag['name'].capitalize())}\n\n{tag.get('description', '')}\n"
        )
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts += operation_parts(document, f"{method.upper()} {path}", operation)
    return "\n".join((*parts, errors(document)))


def operation_parts(document: dict[str, Any], name: str, operation: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of an endpoint's section."""
    yield f"### {name}\n\n{operation.get('description') or operation['summary']}\n"
    if parameters := operation.get("parameters"):
        rows = [
            (
                _bold(each["name"], each.get("required")),
                each["in"],
                _type(document, each["schema"]),
                _meaning(each),
            )
            for each in parameters
        ]
        yield table(("parameter", "in", "type", "meaning"), rows)
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from body_parts(document, "Request", media_type, content)
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            if status == "200":
                yield from body_parts(document, "Response", media_type, content)
    statuses = [status for status in operation["responses"] if status != "200"]
    if any(status.isdigit() for status in statuses):
        yield f"[Errors](#errors): {', '.join(statuses)}.\n"


def body_parts(
    document: dict[str, Any], title: str, media_type: str, content: dict[str, Any]
) -> Iterator[str]:
    """Yield the description, fields and example of a body."""
    schema = _resolved(document, content.get("schema", {}))
    yield f"**{title}** (`{media_type}`). {schema.get('description', '')}\n"
    if rows := list(fields(document, schema)):
        yield table(("field", "type", "meaning"), rows)
    if example := content.get("example"):
        is_text = isinstance(example, str)
        shown = example.strip() if is_text else json.dumps(example, indent=2, ensure_ascii=False)
        yield f"```{'text' if is_text else 'json'}\n{shown}\n```\n"


def fields(
    document: dict[str, Any], schema: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each field, and of the fields inside of it."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        kind = _type(document, field)
        is_request = (
            "default" in field or name not in required
        )  # where null says no more than that it may be left out
        yield (
            _bold(path, name in required),
            kind.removesuffix(" or null") if is_request else kind,
            _meaning(field),
        )
        inner, is_list = _inside(document, field)
        if prefix.count(".") < 4:
            yield from fields(document, inner, f"{path}[]." if is_list else f"{path}.")


def errors(document: dict[str, Any]) -> str:
    """Return the table of errors, which every task's endpoint may return."""
    responses = document["paths"]["/classify"]["post"]["responses"]
    rows = [
        (status, f"`{content['example']['type']}`", response["description"])
        for status, response in responses.items()
        if (content := response["content"].get("application/problem+json"))
    ]
    head = "## Errors\n\nErrors are `application/problem+json`. [The API](../api.md#errors) says what to do about each.\n\n"
    return head + table(("status", "type", "meaning"), rows)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _bold(name: str, is_required: object) -> str:
    return f"**`{name}`**" if is_required else f"`{name}`"


def _meaning(field: dict[str, Any]) -> str:
    text = " ".join(field.get("description", "").split())
    default = field.get("default")
    return text if default is None else f"{text} Default: `{json.dumps(default)}`.".strip()


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _inside(document: dict[str, Any], field: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the object that a field holds, if any, and whether it holds a list of them."""
    for option in (field, *field.get("anyOf", ())):
        is_list = "items" in option
        found = _resolved(document, option["items"] if is_list else option)
        if "properties" in found:
            return found, is_list
    return {}, False


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(_type(document, option) for option in options))
    schema = _resolved(document, schema)
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    name = str(schema.get("type", "any"))
    if name == "array":
        name = f"list of {_type(document, schema.get('items', {}))}"
    limits = [text.format(f"{schema[key]:g}") for key, text in LIMITS.items() if key in schema]
    return f"{name} ({', '.join(limits)})" if limits else name
