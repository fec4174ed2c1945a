"""The requests of Text Embeddings Inference."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, PlainValidator

from service.http.compat.requests import Compared, CompatibleRequest, Flag, Strings, check_direction, only
from service.tasks.schema import Dimensions, Example

NORMALIZED = "Give each vector length 1. Models that end in the norm do so anyway."


@dataclass(frozen=True, slots=True)
class Rows:
    """Texts (lists of one) or pairs (lists of two), and whether they were sent as a list of such lists."""

    rows: list[list[str]]
    is_batch: bool


def _rows(value: object) -> Rows:
    """Read the inputs of /predict; raises ValueError for other shapes."""
    is_batch = isinstance(value, list) and any(isinstance(each, list) for each in value)
    batch = value if is_batch and isinstance(value, list) else [value]
    rows: list[Any] = [each if isinstance(each, list) else [each] for each in batch]
    if not all(len(row) in (1, 2) and all(isinstance(text, str) for text in row) for row in rows):
        raise ValueError("must be a text, a pair of texts, or a list of lists of one or two texts")
    if len({len(row) for row in rows}) > 1:
        raise ValueError("mixes single texts and pairs; send them in two requests")
    return Rows(rows, is_batch)


def _ids(value: object) -> list[list[int]]:
    """Read ids of tokens; raises ValueError for anything else."""
    items = value if isinstance(value, list) else [None]
    rows: list[Any] = items if any(isinstance(each, list) for each in items) else [items]
    if not all(isinstance(row, list) and all(type(each) is int for each in row) for row in rows):
        raise ValueError("must be a list of token ids, or a list of such lists")
    return rows


class TeiCuts(CompatibleRequest):
    """Options of all requests."""

    truncate: Flag | None = Field(
        None, description="Cut at the model's length, which the header x-truncated tells."
    )
    truncation_direction: str | None = Field(None, description="right; left is refused.")

    def cuts(self) -> bool:
        """Tell whether to cut texts; refuse what is not done."""
        check_direction(self.truncation_direction)
        return self.truncate is not False


class TeiOptions(TeiCuts):
    """Options of requests for embeddings."""

    prompt_name: str | None = None


class TeiEmbedRequest(TeiOptions):
    """Texts to embed."""

    example: ClassVar[Example] = {"inputs": "How do I reset my password?"}
    inputs: Strings
    normalize: Flag | None = Field(True, description=NORMALIZED)
    dimensions: Dimensions | None = Field(None, description="Keep so many numbers, of length 1 again.")


class TeiSparseRequest(TeiOptions):
    """Texts to turn into sparse vectors."""

    example: ClassVar[Example] = {"inputs": "How do I reset my password?"}
    inputs: Strings


class TeiPredictRequest(TeiCuts):
    """Texts or pairs to classify."""

    example: ClassVar[Example] = {"inputs": "A warm film."}
    inputs: Annotated[
        Rows, PlainValidator(_rows, json_schema_input_type=str | list[str] | list[list[str]])
    ] = Field(description="A text; a pair as a list of two; or a list of lists of one or two texts.")
    raw_scores: Flag = Field(False, description="The numbers before softmax or sigmoid.")
    prompt_name: Annotated[Any, only(why="classifiers have no prompts")] = None


class TeiRerankRequest(TeiCuts):
    """A query and the texts that are ranked for it."""

    example: ClassVar[Example] = {
        "query": "Where is it warm?",
        "texts": ["A warm day in Munich.", "It is dull."],
    }
    query: str
    texts: Strings
    raw_scores: Flag = False
    return_text: Flag = False
    prompt_name: Annotated[Any, only(why="a query and its texts get their own prompts")] = None


class TeiSimilarityRequest(CompatibleRequest):
    """Sentences to compare."""

    example: ClassVar[Example] = {
        "inputs": {"source_sentence": "I lost my key.", "sentences": ["Where is my key?", "It rains."]}
    }
    inputs: Compared
    parameters: TeiOptions | None = None


class TeiTokenizeRequest(CompatibleRequest):
    """Texts to show as tokens."""

    example: ClassVar[Example] = {"inputs": "Warsaw!"}
    inputs: Strings
    add_special_tokens: Flag = True
    prompt_name: str | None = None


class TeiDecodeRequest(CompatibleRequest):
    """Token ids of one text, or lists of them."""

    example: ClassVar[Example] = {"ids": [101, 8199, 999, 102]}
    ids: Annotated[list[list[int]], PlainValidator(_ids, json_schema_input_type=list[int] | list[list[int]])]
    skip_special_tokens: Flag = True


class TeiAnyRequest(CompatibleRequest):
    """A request of the model's own kind: embed, rerank or predict."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())
    example: ClassVar[Example] = TeiEmbedRequest.example
