"""JSON of the tasks that choose among labels or texts: request, response and an example of both. The base of all schemas.

Requests are validated with these models. Responses are documented by them and built as plain dicts in responses.py.
Each example of a response is what the demo model answers to the example of the request.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from bert.tasks.classification import ALL_SCORES, Scoring, WindowMerge
from service.http.problems import shown


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


Example = dict[str, Any]
Item = TypeVar("Item")
NonEmpty = Annotated[list[Item], Field(json_schema_extra={"minItems": 1})]
"""A list for which the document says that it is not empty; `check_count` refuses an empty one, in its own words."""
TwoOrMore = Annotated[list[Item], Field(json_schema_extra={"minItems": 2})]
"""A list of at least two, which `check_choices` sees to."""
Text = str | NonEmpty[str]
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
Temperature = Annotated[
    float, Field(gt=0, le=100), number("a number above 0 and at most 100", lambda value: 0 < value <= 100)
]
ModelName = Annotated[
    str | None,
    Field(description="Name of a loaded model, see /models. Default: the task's default model."),
]
Truncated = Annotated[bool, Field(description="True if the text was cut at the model's length.")]


def response_example(model: str, tokens: int, *results: Example) -> Example:
    """Return a response as the OpenAPI document shows it."""
    return {"model": model, "results": list(results), "usage": {"tokens": tokens}}


class Schema(BaseModel):
    """Base of every request and response; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    example: ClassVar[Example] = {}
    """Shown in the OpenAPI document."""
    nested: ClassVar[frozenset[str]] = frozenset()
    """Fields that take a list of strings, or a list of such lists."""
    names: ClassVar[frozenset[str]] = frozenset()
    """Fields that take a list of names, which do not count as texts."""


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


class ClassifyRequest(Schema):
    """One text or a list of texts, or pairs of texts.

    A pair is two strings, two lists of equal length, or one string that goes with each item of a list.
    """

    example: ClassVar[Example] = {"text": "A warm, funny film that I would gladly see again."}
    pair_example: ClassVar[Example] = {"text": "A warm film.", "text_pair": "A good one."}

    text: Text
    text_pair: Text | None = Field(None, description="Second text of each pair, for models trained on pairs.")
    top_k: TopK | None = Field(None, description="Number of scores, best first. Default: all labels.")
    threshold: Share | None = Field(
        None, description="Lowest score in `scores`, which may be empty. `label` is the best one in any case."
    )
    temperature: Temperature | None = Field(
        None, description="Divisor of the logits before softmax or sigmoid. Default: 1."
    )
    windows: WindowMerge | None = Field(
        None,
        description="Read long texts in overlapping windows. The score of a label is the highest of the windows, or "
        "their mean by the tokens of the text in each. Single texts only, and without `truncate`.",
    )
    truncate: Truncate = False
    model: ModelName = None

    def scoring(self) -> Scoring:
        """Return what is asked of the scores."""
        if self.top_k is None and self.threshold is None and self.temperature is None:
            return ALL_SCORES
        return Scoring(self.top_k, self.threshold, self.temperature)


class LabelScore(Schema):
    """A label and its score."""

    label: str
    score: float


class ClassifyResult(LabelScore):
    """The best label, and the scores of all labels or of those that were asked for."""

    scores: list[LabelScore] = Field(
        description="Best first. Probabilities, or the predicted number of a regression model."
    )
    truncated: Truncated


class ClassifyResponse(TaskResponse):
    """One result for each text or pair, in order."""

    example: ClassVar[Example] = response_example(
        "sentiment",
        14,
        {
            "label": "positive",
            "score": 0.999,
            "scores": [{"label": "positive", "score": 0.999}, {"label": "negative", "score": 0.001}],
            "truncated": False,
        },
    )
    results: list[ClassifyResult]


class MultipleChoiceRequest(Schema):
    """A prompt and its choices, or a list of prompts.

    Several prompts have one list of choices for all, or a list of lists: one for each prompt.
    """

    example: ClassVar[Example] = {
        "prompt": "The film was dull, so",
        "choices": ["it was not long.", "she left."],
    }
    nested: ClassVar[frozenset[str]] = frozenset({"choices"})

    prompt: NotBlank | NonEmpty[NotBlank] = Field(description="A question, or the text before the choices.")
    choices: TwoOrMore[NotBlank] | NonEmpty[TwoOrMore[NotBlank]] = Field(
        description="Texts that are read beside the prompt, one at a time."
    )
    top_k: TopK | None = Field(None, description="Number of scores, best first. Default: all choices.")
    truncate: Truncate = False
    model: ModelName = None


class ChoiceScore(Schema):
    """A choice and its probability among the choices of its prompt."""

    index: int = Field(description="Index of the choice in its list.")
    choice: str
    score: float


class MultipleChoiceResult(ChoiceScore):
    """The best choice of one prompt, and the scores of all choices or of the `top_k` best."""

    scores: list[ChoiceScore] = Field(description="Best first. The probabilities of all choices add up to 1.")
    truncated: bool = Field(description="True if a choice, or the prompt beside one, was cut.")


class MultipleChoiceResponse(TaskResponse):
    """One result for each prompt, in order."""

    example: ClassVar[Example] = response_example(
        "stories",
        29,
        {
            "index": 1,
            "choice": "she left.",
            "score": 0.98,
            "scores": [
                {"index": 1, "choice": "she left.", "score": 0.98},
                {"index": 0, "choice": "it was not long.", "score": 0.02},
            ],
            "truncated": False,
        },
    )
    results: list[MultipleChoiceResult]
