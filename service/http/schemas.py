"""What goes over the wire, as pydantic models.

Requests are validated with them, answers are documented by them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from bert.tasks.fill_mask import MAX_CANDIDATES

Text = str | list[str]
_Said = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\S"})]
_Masked = Annotated[str, WithJsonSchema({"type": "string", "pattern": r"\[MASK\]"})]
TopK = Annotated[int, Field(strict=True, ge=1)]
MODEL = Field(None, description="Name of a loaded model; without it the task's default answers. See /models.")
TRUNCATE = Field(
    False,
    strict=True,
    description="Cut a text at the model's length; otherwise a longer one is refused with 422, which "
    "says its length.",
)


class Request(BaseModel):
    """A request's body; fields it does not know are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ClassifyRequest(Request):
    """One text or a list, or pairs.

    Two strings, two lists of one length, or one string that goes with each of a list.
    """

    text: Text
    text_pair: Text | None = Field(
        None, description="The second text of each pair, for models trained on pairs."
    )
    top_k: TopK | None = Field(None, description="How many scores, best first; without it all labels.")
    truncate: bool = TRUNCATE
    model: str | None = MODEL


class NerRequest(Request):
    """One text or a list, of any length."""

    text: Text
    model: str | None = MODEL


class SimilarityRequest(Request):
    """Texts, and candidates that are ranked for each of them."""

    text: Text
    candidates: Text
    top_k: TopK | None = Field(
        None, description="How many candidates for each text, best first; without it all."
    )
    truncate: bool = TRUNCATE
    model: str | None = MODEL


class QaRequest(Request):
    """Questions and contexts.

    Two strings, two lists of one length, or one string that goes with each of a list.
    """

    question: _Said | list[_Said]
    context: _Said | list[_Said] = Field(description="Of any length.")
    top_k: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        1,
        description="How many answers at most: the best, and the next ones as alternatives. No more come back than "
        "the model weighs (`n_best` of its task.json: 20), and no score depends on it.",
    )
    max_answer_tokens: Annotated[int, Field(strict=True, ge=1, le=512)] | None = Field(
        None, description="Longest answer, in the model's tokens; without it what the model was tuned with."
    )
    model: str | None = MODEL


class EmbedRequest(Request):
    """One text or a list."""

    text: Text
    truncate: bool = TRUNCATE
    model: str | None = MODEL


class FillMaskRequest(Request):
    """One text or a list, each with one [MASK] or several."""

    text: _Masked | list[_Masked] = Field(
        description="With [MASK] in each place that is asked about, and not longer than the model reads."
    )
    top_k: Annotated[int, Field(strict=True, ge=1, le=MAX_CANDIDATES)] = Field(
        5, description="How many candidates for each mask, best first."
    )
    model: str | None = MODEL


class TokenizeRequest(Request):
    """One text or a list, of any length."""

    text: Text
    model: str | None = Field(None, description="Whose tokenizer; without it that of the first model.")


class Body(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Usage(Body):
    """What the request cost."""

    tokens: int = Field(
        description="Tokens that the model read, special ones and windows' overlaps included."
    )


class Answered(Body):
    """What every answer has."""

    model: str = Field(description="Name of the model that answered.")
    usage: Usage


class LabelScore(Body):
    """A label and its score."""

    label: str
    score: float


class ClassifyResult(LabelScore):
    """The best label, and the scores of all or of the `top_k` best."""

    scores: list[LabelScore] = Field(
        description="Best first: probabilities; of a regression the number itself."
    )
    truncated: bool = Field(description="Whether the text was cut at the model's length.")


class ClassifyResponse(Answered):
    """One result for each text or pair, in order."""

    results: list[ClassifyResult]


class EntityResult(Body):
    """A stretch of the text: text[start:end], in Unicode code points."""

    text: str
    label: str
    start: int
    end: int
    score: float = Field(description="Mean probability of the label over the entity's words.")


class NerResult(Body):
    """The entities of one text, in its order."""

    entities: list[EntityResult]


class NerResponse(Answered):
    """One result for each text, in order."""

    results: list[NerResult]


class SimilarityResult(Body):
    """A candidate and its cosine with the text."""

    text_index: int = Field(description="Which text of the request, 0 if it was one string.")
    index: int = Field(description="Which candidate of the request.")
    score: float
    truncated: bool = Field(description="Whether the text or the candidate was cut at the model's length.")


class SimilarityResponse(Answered):
    """For each text in order its candidates, best first."""

    results: list[SimilarityResult]


class SpanResult(Body):
    """An answer: context[start:end], in Unicode code points."""

    answer: str
    score: float
    start: int
    end: int


class QaResult(Body):
    """The best answer; `answer`, `start` and `end` are null where the context has none."""

    answer: str | None
    score: float = Field(
        description="Probability of what is answered, no answer too, among the best candidates."
    )
    start: int | None
    end: int | None
    no_answer_score: float
    alternatives: list[SpanResult]


class QaResponse(Answered):
    """One result for each question, in order."""

    results: list[QaResult]


class EmbedResult(Body):
    """A vector of length 1: its dot product with another one is their cosine."""

    embedding: list[float] = Field(
        description="As many numbers as the model is wide; the example shows the first."
    )
    truncated: bool = Field(description="Whether the text was cut at the model's length.")


class EmbedResponse(Answered):
    """One result for each text, in order."""

    results: list[EmbedResult]


class CandidateResult(Body):
    """A piece that may stand in a mask's place."""

    token: str = Field(description="The vocabulary's piece; ##ing goes on with the word before.")
    id: int
    score: float = Field(description="Its probability, among all pieces of the vocabulary.")
    sequence: str = Field(description="The text with the piece in this mask's place; other masks stay.")


class MaskResult(Body):
    """One mask, text[start:end] in Unicode code points, and its candidates, best first."""

    start: int
    end: int
    candidates: list[CandidateResult]


class FillMaskResult(Body):
    """The masks of one text, in its order."""

    masks: list[MaskResult]


class FillMaskResponse(Answered):
    """One result for each text, in order."""

    results: list[FillMaskResult]


class TokenResult(Body):
    """A token: the vocabulary's piece, and the characters text[start:end] that it stands for."""

    id: int
    text: str
    start: int
    end: int
    special: bool = Field(description="Whether the model adds it ([CLS], [SEP]); start and end are 0 then.")


class TokenizeResult(Body):
    """The tokens of one text."""

    tokens: list[TokenResult]


class TokenizeResponse(Answered):
    """One result for each text, in order."""

    results: list[TokenizeResult]


class ModelInfo(Body):
    """A loaded model."""

    name: str
    version: str
    task: str
    default: bool = Field(description="Whether it answers where a request for its task names no model.")
    labels: list[str]
    problem: str | None = Field(description="Classification only: single_label, multi_label or regression.")
    pair: bool = Field(description="Whether it was trained on pairs of texts.")
    max_tokens: int = Field(description="What it reads at once, special tokens included.")
    stride: int = Field(description="Tokens that two windows of a long text share.")
    precision: str
    why_fallback: str | None = Field(
        description="Why the float32 graph is served in place of the one in 8 bits; null if it is not."
    )
    provider: str
    batch_tokens: int = Field(description="Tokens in a batch, given or measured.")
    dev_score: dict[str, Any]
    parity: dict[str, Any]
    ready: bool = Field(description="What /health/ready?model=NAME says.")
    why_not_ready: str | None


class LeftOutInfo(Body):
    """A bundle that could not be loaded: requests for its model get 503."""

    name: str
    task: str = Field(description="Empty where the manifest cannot be read.")
    reason: str = Field(description="What is wrong with it, and what to do.")


class ModelsResponse(Body):
    """Every loaded model, and the bundles that were left out."""

    models: list[ModelInfo]
    left_out: list[LeftOutInfo]


class HealthResponse(Body):
    """How the service is."""

    status: str


class ProblemField(Body):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(BaseModel):
    """An error, application/problem+json (RFC 9457)."""

    type: str = Field(description="A fixed name of the kind of problem, for programs.")
    title: str
    status: int
    detail: str = Field(description="What happened and what to do, for people.")
    request_id: str
    errors: list[ProblemField] = Field(default=[], description="Field by field, where fields are at fault.")
