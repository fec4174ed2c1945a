"""JSON of the tasks whose results point into the text: request, response and an example of both.

Where a task's result is a dataclass with the fields of the JSON, it is the schema.
"""

from typing import Annotated, ClassVar

from pydantic import Field, WithJsonSchema

from bert.tasks.aggregation import Aggregation
from bert.tasks.fill_mask import MAX_CANDIDATES, FilledMask
from bert.tasks.ner import Entity
from service.http.schemas import (
    Example,
    ModelName,
    NonEmpty,
    NotBlank,
    Schema,
    Share,
    TaskResponse,
    Text,
    response_example,
    whole,
)
from service.pipeline.pipeline import Token

MAX_ANSWERS = 100
AnswerTokens = Annotated[int, Field(ge=1, le=512), whole(1, 512)]
Candidates = Annotated[int, Field(ge=1, le=MAX_CANDIDATES), whole(1, MAX_CANDIDATES)]
Masked = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\[MASK\]"})]


class NerRequest(Schema):
    """One text or a list of texts, of any length."""

    example: ClassVar[Example] = {"text": "Angela Merkel met engineers from Siemens in Munich."}
    names: ClassVar[frozenset[str]] = frozenset({"labels", "left_out"})

    text: Text
    min_score: Share | None = Field(
        None, description="Entities with a lower score are left out. Default: none are."
    )
    labels: NonEmpty[str] | None = Field(
        None, description="Types of the entities to keep: `entity_types` of /models. Default: all types."
    )
    aggregation: Aggregation = Field(
        Aggregation.FIRST,
        description="Way from the model's pieces to entities. Of each word the `first` piece decides its label, the "
        "`average` of all pieces, or the one with the highest probability (`max`). `simple` joins neighbouring pieces "
        "whatever their words; `none` gives each piece with its tag.",
    )
    left_out: NonEmpty[str] | None = Field(
        None,
        description="Kinds of words that no entity has: `symbols` such as emoji, and `handles`, names after an at sign. "
        "Default: those that the model leaves out (`left_out` of its task.json).",
    )
    model: ModelName = None


class NerResult(Schema):
    """The entities of one text, in text order."""

    entities: list[Entity]


class NerResponse(TaskResponse):
    """One result for each text, in order."""

    example: ClassVar[Example] = response_example(
        "ner",
        12,
        {
            "entities": [
                {"text": "Angela Merkel", "label": "PER", "start": 0, "end": 13, "score": 0.99},
                {"text": "Siemens", "label": "ORG", "start": 33, "end": 40, "score": 0.98},
                {"text": "Munich", "label": "LOC", "start": 44, "end": 50, "score": 0.99},
            ]
        },
    )
    results: list[NerResult]


class QaRequest(Schema):
    """Questions and contexts.

    Two strings, two lists of equal length, or one string that goes with each item of a list.
    """

    example: ClassVar[Example] = {
        "question": "Where was Marie Curie born?",
        "context": "Marie Curie was born in Warsaw in 1867 and moved to Paris to study physics.",
    }

    question: NotBlank | NonEmpty[NotBlank]
    context: NotBlank | NonEmpty[NotBlank] = Field(description="Of any length.")
    top_k: Annotated[int, Field(ge=1, le=MAX_ANSWERS), whole(1, MAX_ANSWERS)] = Field(
        1,
        description="Maximum number of answers: the best, then alternatives. At most `n_best` of the model's "
        "task.json (20 by default) are returned. Scores do not depend on it.",
    )
    max_answer_tokens: AnswerTokens | None = Field(
        None, description="Longest answer, in the model's tokens. Default: what the model was tuned with."
    )
    no_answer_threshold: Share | None = Field(
        None,
        description="Null is answered where `no_answer_score` is over this; with 1 only where the context has no token. "
        "Default: the model's own rule, tuned on development data. Only for models that were trained on questions without "
        "an answer.",
    )
    model: ModelName = None


class SpanResult(Schema):
    """An answer: context[start:end], in Unicode code points."""

    answer: str
    score: float
    start: int
    end: int


class QaResult(Schema):
    """The best answer; `answer`, `start` and `end` are null if the context has none."""

    answer: str | None
    score: float = Field(
        description="Probability of the returned answer (or of no answer) among the best candidates."
    )
    start: int | None
    end: int | None
    no_answer_score: float
    alternatives: list[SpanResult]


class QaResponse(TaskResponse):
    """One result for each question, in order."""

    example: ClassVar[Example] = response_example(
        "qa",
        27,
        {
            "answer": "Warsaw",
            "score": 0.995,
            "start": 24,
            "end": 30,
            "no_answer_score": 2.3e-07,
            "alternatives": [],
        },
    )
    results: list[QaResult]


class FillMaskRequest(Schema):
    """One text or a list of texts, each with at least one [MASK]."""

    example: ClassVar[Example] = {"text": "Paris is the [MASK] of France.", "top_k": 2}
    text: Masked | NonEmpty[Masked] = Field(
        description="Text with [MASK] in each place to fill, at most as long as the model reads."
    )
    top_k: Candidates = Field(5, description="Number of candidates for each mask, best first.")
    model: ModelName = None


class FillMaskResult(Schema):
    """The masks of one text, in text order."""

    masks: list[FilledMask]


_PARIS = {"token": "capital", "id": 3007, "score": 0.99, "sequence": "Paris is the capital of France."}
_HEART = {"token": "heart", "id": 2540, "score": 0.01, "sequence": "Paris is the heart of France."}


class FillMaskResponse(TaskResponse):
    """One result for each text, in order."""

    example: ClassVar[Example] = response_example(
        "masked", 9, {"masks": [{"start": 13, "end": 19, "candidates": [_PARIS, _HEART]}]}
    )
    results: list[FillMaskResult]


class TokenizeRequest(Schema):
    """One text or a list of texts, of any length."""

    example: ClassVar[Example] = {"text": "Warsaw!"}
    text: Text
    model: str | None = Field(
        None, description="Name of the model whose tokenizer is used. Default: the first model."
    )


class TokenizeResult(Schema):
    """The tokens of one text."""

    tokens: list[Token]


class TokenizeResponse(TaskResponse):
    """One result for each text, in order."""

    example: ClassVar[Example] = response_example(
        "ner",
        4,
        {
            "tokens": [
                {"id": 101, "text": "[CLS]", "start": 0, "end": 0, "special": True},
                {"id": 8199, "text": "warsaw", "start": 0, "end": 6, "special": False},
                {"id": 999, "text": "!", "start": 6, "end": 7, "special": False},
                {"id": 102, "text": "[SEP]", "start": 0, "end": 0, "special": True},
            ]
        },
    )
    results: list[TokenizeResult]
