"""JSON of the tasks that read a text as a whole: request, response and an example of both. The base of all schemas.

Requests are validated with these models. Responses are documented by them and built as plain dicts in responses.py.
Each example of a response is what the demo model answers to the example of the request.
"""

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from bert.errors import displayed

JSON_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}


def check_share(value: object) -> object:
    """Refuse what is not a number from 0 to 1, by value: pydantic would take true and "1" for one."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return value
    shown = JSON_NAMES.get(type(value)) or displayed(str(value).lower())
    raise PydanticCustomError("share", "must be a number from 0 to 1, not {shown}", {"shown": shown})


Example = dict[str, Any]
Item = TypeVar("Item")
NonEmpty = Annotated[list[Item], Field(json_schema_extra={"minItems": 1})]
"""A list for which the document says that it is not empty; `check_count` refuses an empty one, in its own words."""
TwoOrMore = Annotated[list[Item], Field(json_schema_extra={"minItems": 2})]
"""A list of at least two, which `check_choices` sees to."""
Text = str | NonEmpty[str]
NotBlank = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\S"})]
TopK = Annotated[int, Field(strict=True, ge=1)]
Truncate = Annotated[
    bool,
    Field(
        strict=True,
        description="Cut each text at the model's length. Without it a longer text is refused with 422.",
    ),
]
Share = Annotated[float, BeforeValidator(check_share), Field(ge=0, le=1)]
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


class Usage(Schema):
    """Cost of the request."""

    tokens: int = Field(
        description="Tokens that the model read, including special tokens and window overlaps."
    )


class TaskResponse(Schema):
    """Base of every task's response."""

    model: str = Field(description="Name of the model that answered.")
    usage: Usage


class ClassifyRequest(Schema):
    """One text or a list of texts, or pairs of texts.

    A pair is two strings, two lists of equal length, or one string that goes with each item of a list.
    """

    example: ClassVar[Example] = {"text": "A warm, funny film that I would gladly see again."}
    pair_example: ClassVar[Example] = {"text": "A warm film.", "text_pair": "A good one."}

    text: Text
    text_pair: Text | None = Field(None, description="Second text of each pair, for models trained on pairs.")
    top_k: TopK | None = Field(None, description="Number of scores, best first. Default: all labels.")
    truncate: Truncate = False
    model: ModelName = None


class LabelScore(Schema):
    """A label and its score."""

    label: str
    score: float


class ClassifyResult(LabelScore):
    """The best label, and the scores of all labels or of the `top_k` best."""

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


class SimilarityRequest(Schema):
    """Texts, and candidates that are ranked for each text."""

    example: ClassVar[Example] = {
        "text": "How do I reset my password?",
        "candidates": ["Opening hours on Sunday", "I forgot my login"],
    }

    text: Text
    candidates: Text
    top_k: TopK | None = Field(
        None, description="Number of candidates for each text, best first. Default: all."
    )
    prompt_name: PromptName = None
    candidates_prompt_name: PromptName = None
    truncate: Truncate = False
    model: ModelName = None


class SimilarityResult(Schema):
    """A candidate and its similarity to the text."""

    text_index: int = Field(description="Index of the text in the request, 0 for a single string.")
    index: int = Field(description="Index of the candidate in the request.")
    score: float = Field(
        description="Cosine of both vectors, or their dot product if the model compares by it."
    )
    truncated: bool = Field(description="True if the text or the candidate was cut at the model's length.")


class SimilarityResponse(TaskResponse):
    """The candidates of each text, best first, in the order of the texts."""

    example: ClassVar[Example] = response_example(
        "similarity",
        22,
        {"text_index": 0, "index": 1, "score": 0.61, "truncated": False},
        {"text_index": 0, "index": 0, "score": 0.04, "truncated": False},
    )
    results: list[SimilarityResult]


class RerankRequest(Schema):
    """A query, and candidates that are ranked for it."""

    example: ClassVar[Example] = {
        "query": "How do I reset my password?",
        "candidates": ["Opening hours on Sunday", "I forgot my login"],
    }

    query: str
    candidates: Text
    top_k: TopK | None = Field(None, description="Number of candidates, best first. Default: all.")
    truncate: Truncate = False
    model: ModelName = None


class RerankResult(Schema):
    """A candidate and how well it answers the query."""

    index: int = Field(description="Index of the candidate in the request.")
    score: float = Field(
        description="From a cross-encoder 0 to 1, the sigmoid of its number; from embeddings as in /similarity."
    )
    truncated: bool = Field(description="True if the query or the candidate was cut at the model's length.")


class RerankResponse(TaskResponse):
    """The candidates, best first."""

    example: ClassVar[Example] = response_example(
        "similarity",
        22,
        {"index": 1, "score": 0.61, "truncated": False},
        {"index": 0, "score": 0.04, "truncated": False},
    )
    results: list[RerankResult]


class EmbedRequest(Schema):
    """One text or a list of texts."""

    example: ClassVar[Example] = {"text": "How do I reset my password?"}
    text: Text
    prompt_name: PromptName = None
    truncate: Truncate = False
    model: ModelName = None


class EmbedResult(Schema):
    """A vector, of length 1 unless the model's own files leave it as it is."""

    embedding: list[float] = Field(
        description="As many numbers as the model gives; the example shows the first few."
    )
    truncated: Truncated


class EmbedResponse(TaskResponse):
    """One result for each text, in order."""

    example: ClassVar[Example] = response_example(
        "similarity", 9, {"embedding": [0.00690308, -0.0630234, -0.072044], "truncated": False}
    )
    results: list[EmbedResult]
