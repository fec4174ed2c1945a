"""JSON of requests and results: the bases of all schemas, and types of fields that several tasks have.

Requests are validated by pydantic models. Results are plain dicts, typed as TypedDict: building one costs nothing more, and
the OpenAPI document has their fields and descriptions from the same declaration.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict as TypedDict  # of pydantic, which takes typing's from Python 3.12 on

from bert.errors import shown

Example = dict[str, Any]
Item = TypeVar("Item")
RESULT_BYTES = 80
"""Bytes of a result's names and numbers in JSON, about."""
CHARACTER_BYTES = 6
"""Most bytes of a character in JSON: those of an escape, such as \\u0001."""


def number(rule: str, fits: Callable[[float], bool], *, is_whole: bool = False) -> BeforeValidator:
    """Return a validator that names the rule and the value; pydantic's own takes true and "1" for a number.

    It stands after the field's bounds, which are then in the document as JSON Schema has them. 2.0 is a whole number,
    as in JSON Schema: clients in JavaScript and R send it so.
    """

    def check(value: Any) -> object:
        found = int(value) if is_whole and type(value) is float and value.is_integer() else value
        if type(found) in ((int,) if is_whole else (int, float)) and fits(found):
            return found
        raise PydanticCustomError(
            "number", "must be {rule}, not {shown}", {"rule": rule, "shown": shown(value)}
        )

    return BeforeValidator(check)


def whole(least: int, most: int | None = None) -> BeforeValidator:
    """Return the validator of a whole number within bounds."""
    rule = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    return number(rule, lambda value: least <= value <= (value if most is None else most), is_whole=True)


NonEmpty = Annotated[list[Item], Field(json_schema_extra={"minItems": 1})]
"""A list for which the document says that it is not empty; `check_count` refuses an empty one, in its own words."""
Text = str | NonEmpty[str]
Hypotheses = Annotated[dict[str, str], Field(json_schema_extra={"minProperties": 1})]
"""Texts by label."""
NotBlank = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\S"})]
TopK = Annotated[int, Field(ge=1), whole(1)]
Truncate = Annotated[
    bool,
    Field(
        strict=True,
        description="Cut each text at the model's length. Without it a longer text is refused with 422.",
    ),
]
Share = Annotated[float, Field(ge=0, le=1), number("a number from 0 to 1", lambda value: 0 <= value <= 1)]
ModelName = Annotated[
    str | None,
    Field(description="Name of a loaded model, see /models. Default: the task's default model."),
]
PromptName = Annotated[
    str | None,
    Field(
        description="Name of the model's prompt that goes before each text, see /models. Default: the model's default "
        'prompt; "" is no prompt.'
    ),
]
Dimensions = Annotated[int, Field(ge=1), whole(1)]
Truncated = Annotated[bool, Field(description="True if the text was cut at the model's length.")]


class Schema(BaseModel):
    """Base of every request and response; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    example: ClassVar[Example] = {}
    """Shown in the OpenAPI document."""
    nested: ClassVar[frozenset[str]] = frozenset()
    """Fields that take a list of strings, a list of such lists, or, as pydantic says, an object of strings."""
    names: ClassVar[frozenset[str]] = frozenset()
    """Fields that take a list of names, which do not count as texts."""


complete = with_config(ConfigDict(extra="forbid"))
"""Decorator of a result: the document says that it has no other fields."""


class Usage(Schema):
    """Cost of the request."""

    tokens: int = Field(
        description="Tokens that the model read, including special tokens and window overlaps."
    )


class FieldWarning(Schema):
    """A remark on one text of the request."""

    field: str = Field(description="Name of the field; one text of a list reads like text[3].")
    message: str


class TaskResponse(Schema):
    """Base of every task's response."""

    model: str = Field(description="Name of the model that answered.")
    usage: Usage
    warnings: NonEmpty[FieldWarning] = Field(
        default_factory=list,
        description="Texts of which the tokenizer does not know over half of the pieces, at most 20; left out where "
        "there are none.",
    )


class HasBounds(Protocol):
    """A stretch of a text, [start:end] in code points: an answer, an entity, a piece."""

    @property
    def start(self) -> int:
        """Return where it starts."""
        ...

    @property
    def end(self) -> int:
        """Return where it ends."""
        ...


def text_size(text: str) -> int:
    """Return the bytes of a text in JSON."""
    return len(orjson.dumps(text))


def spans_size(spans: Iterable[HasBounds]) -> int:
    """Return the most bytes of answers or entities, from their lengths alone: their texts may be large together."""
    return sum(RESULT_BYTES + CHARACTER_BYTES * (span.end - span.start) for span in spans)
