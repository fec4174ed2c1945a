"""Results of the service as dataclasses with the fields of docs/api.md. Unknown fields are left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from bert_client.errors import FieldError

JsonObject = Mapping[str, Any]
"""A JSON object of the service."""
T = TypeVar("T")


def read(kind: type[T], content: JsonObject, **own: object) -> T:
    """Return a dataclass from the JSON object with its fields; `own` are those that were read already."""
    names = (each.name for each in fields(kind) if each.name in content)  # type: ignore[arg-type]
    return kind(**{**{name: content[name] for name in names}, **own})


def read_all(kind: type[T], objects: list[JsonObject]) -> tuple[T, ...]:
    """Return the dataclasses of a list."""
    return tuple(read(kind, content) for content in objects)


class Result:
    """Base of all results."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them: `json.dumps(result.to_dict())`."""
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value


@dataclass(frozen=True, slots=True)
class LabelScore(Result):
    """A label and its score."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classification(Result):
    """The best label of a text, and the scores of all labels or of the `top_k` best."""

    label: str
    score: float
    scores: tuple[LabelScore, ...]
    """Best first."""
    truncated: bool = False
    """True if the text was cut at the model's length."""

    @classmethod
    def of(cls, content: JsonObject) -> "Classification":
        """Read a result of /classify."""
        return read(cls, content, scores=read_all(LabelScore, content["scores"]))


@dataclass(frozen=True, slots=True)
class Entity(Result):
    """A named entity: `text[start:end]` of the text that was sent."""

    text: str
    label: str
    start: int
    end: int
    score: float

    @classmethod
    def all_of(cls, content: JsonObject) -> list["Entity"]:
        """Read a result of /ner."""
        return list(read_all(cls, content["entities"]))


@dataclass(frozen=True, slots=True)
class Span(Result):
    """An answer: `context[start:end]`."""

    answer: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answer(Result):
    """The best answer to a question; `answer`, `start` and `end` are None if the context has none."""

    answer: str | None
    score: float
    start: int | None
    end: int | None
    no_answer_score: float
    alternatives: tuple[Span, ...] = ()

    @classmethod
    def of(cls, content: JsonObject) -> "Answer":
        """Read a result of /qa."""
        return read(cls, content, alternatives=read_all(Span, content["alternatives"]))


@dataclass(frozen=True, slots=True)
class SparseVector(Result):
    """The weights of a text that are over 0."""

    indices: tuple[int, ...]
    """Ids of the vocabulary's pieces, ascending."""
    values: tuple[float, ...]
    """Weight of each."""
    pieces: tuple[str, ...] = ()
    """Each piece as text, if `pieces` asked for it."""
    truncated: bool = False
    """True if the text was cut at the model's length."""

    @classmethod
    def of(cls, content: JsonObject) -> "SparseVector":
        """Read a result of /embed."""
        lists = {name: tuple(items) for name, items in content["sparse"].items()}
        return read(cls, content, **lists)


@dataclass(frozen=True, slots=True)
class Match(Result):
    """A candidate of /similarity or /rerank."""

    index: int
    """Place of the candidate in your list."""
    score: float
    truncated: bool = False
    """True if the text or the candidate was cut at the model's length."""
    text: str = ""
    """The candidate."""


@dataclass(frozen=True, slots=True)
class ChoiceScore(Result):
    """A choice and its probability among the choices of its prompt."""

    index: int
    choice: str
    score: float


@dataclass(frozen=True, slots=True)
class Choice(Result):
    """The best choice of a prompt, and the scores of all choices or of the `top_k` best."""

    index: int
    choice: str
    score: float
    scores: tuple[ChoiceScore, ...]
    """Best first."""
    truncated: bool = False

    @classmethod
    def of(cls, content: JsonObject) -> "Choice":
        """Read a result of /multiple-choice."""
        return read(cls, content, scores=read_all(ChoiceScore, content["scores"]))


@dataclass(frozen=True, slots=True)
class MaskCandidate(Result):
    """A piece of the vocabulary in a mask's place."""

    token: str
    id: int
    score: float
    sequence: str
    """Your text with the piece in the mask's place."""


@dataclass(frozen=True, slots=True)
class FilledMask(Result):
    """A mask, `text[start:end]`, and its candidates, best first."""

    start: int
    end: int
    candidates: tuple[MaskCandidate, ...]

    @classmethod
    def all_of(cls, content: JsonObject) -> list["FilledMask"]:
        """Read a result of /fill-mask."""
        masks = content["masks"]
        return [read(cls, mask, candidates=read_all(MaskCandidate, mask["candidates"])) for mask in masks]


@dataclass(frozen=True, slots=True)
class Token(Result):
    """A token that the model reads: `text` is the vocabulary's piece, `start` and `end` its characters."""

    id: int
    text: str
    start: int
    end: int
    special: bool

    @classmethod
    def all_of(cls, content: JsonObject) -> list["Token"]:
        """Read a result of /tokenize."""
        return list(read_all(cls, content["tokens"]))


@dataclass(frozen=True, slots=True)
class ModelInfo(Result):
    """A loaded model, as `GET /models` describes it."""

    name: str
    version: str
    task: str
    default: bool
    """True if it answers requests for its task that name no model."""
    labels: list[str]
    problem: str | None
    """Classification only: single_label, multi_label or regression."""
    pair: bool | None
    """True if it reads pairs of texts, False if single texts, None if either."""
    max_tokens: int
    stride: int
    precision: str
    provider: str
    ready: bool
    why_not_ready: str | None
    entity_types: list[str] = field(default_factory=list)
    """NER only: types of its entities."""
    takes_labels: bool = False
    """Tells whether a request may bring the labels to choose from."""
    embedding_size: int | None = None
    """Embeddings only: numbers of a vector."""
    embedding_ranges: dict[str, list[float]] | None = None
    """Embeddings only: ranges of the numbers as int8 and uint8; None if these types are refused."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Requests to try it with; empty where any text of its task will do."""
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    why_fallback: str | None = None
    export: dict[str, Any] | None = None
    """Export of its 8-bit graph while the float32 graph is served; None if there is none."""
    batch_tokens: int | None = None
    dev_score: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CallInfo(Result):
    """Tokens, models and request ids of calls. Pass one as `info=`; it adds up over the calls that get it."""

    model: str = ""
    """The model that answered last."""
    tokens: int = 0
    """Tokens that the models read."""
    request_ids: list[str] = field(default_factory=list)
    """The service's id of each request that was answered."""
    truncated: list[int] = field(default_factory=list)
    """Places in your list of the texts that were cut at the model's length; of candidates, those with a cut match."""
    warnings: list[FieldError] = field(default_factory=list)
    """Texts of which the tokenizer does not know most pieces, with their places in your lists."""
