"""Parts of the requests of compatible APIs: they ignore unknown fields and refuse what cannot be honoured."""

from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from bert.errors import FieldError, InvalidRequestError
from service.http.problems import field_message
from service.tasks.schema import Schema

Body = TypeVar("Body", bound=Schema)
NOT_STRINGS = "must be a string or a list of strings"


class CompatibleRequest(Schema):
    """Base of the requests; unknown fields are ignored, as by the servers that the APIs come from."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


def strings(value: object) -> object:
    """Return a string or a list of strings; raises ValueError for anything else."""
    items = value if isinstance(value, list) else [value]
    if all(isinstance(item, str) for item in items):
        return value
    if all(isinstance(item, int | list) for item in items):
        raise ValueError(f"{NOT_STRINGS}; token ids are not read")
    raise ValueError(NOT_STRINGS)


Strings = Annotated[str | list[str], PlainValidator(strings, json_schema_input_type=str | list[str])]
"""One text or several. Checked by hand: pydantic would make an error for each item, of each alternative."""


Labels = Annotated[
    list[str] | dict[str, str],
    PlainValidator(lambda value: value, json_schema_input_type=list[str] | dict[str, str]),
]
"""Labels, or what is read for each. They are checked as those of /ner, which names the first errors only."""


Flag = Annotated[bool, Field(strict=True)]
"""True or false; 0, 1 and words for them are refused, as by the other servers."""


def only(*values: object, why: str) -> PlainValidator:
    """Return a validator of null and `values`, which ask for what is done anyway; anything else is refused with `why`."""

    def check(value: object) -> object:
        if value is None or any(type(value) is type(known) and value == known for known in values):
            return value
        raise ValueError(f"cannot be honoured: {why}")

    schema = Annotated[
        Any, WithJsonSchema({"enum": [None, *values], "description": f"Any other is refused: {why}."})
    ]
    return PlainValidator(check, json_schema_input_type=schema)


class Compared(CompatibleRequest):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: Strings


def validate(schema: type[Body], content: object, *where: str) -> Body:
    """Return the request, or the part of it at `where`; raises InvalidRequestError, which names its fields."""
    try:
        return schema.model_validate(content)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise InvalidRequestError(
            [
                FieldError(".".join(map(str, (*where, *item["loc"]))) or "body", field_message(item))
                for item in found
            ]
        ) from None


def refused(name: str, message: str) -> InvalidRequestError:
    """Return the error of a field."""
    return InvalidRequestError([FieldError(name, message)])


def check_direction(direction: str | None) -> None:
    """Raise InvalidRequestError for texts that would be cut at their beginning."""
    if (direction or "right").lower() != "right":
        raise refused("truncation_direction", "must be right: texts are cut at their end")
