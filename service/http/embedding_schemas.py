"""JSON of the tasks that compare texts by their vectors: request, response and an example of both."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from service.http.schemas import (
    Example,
    ModelName,
    Schema,
    TaskResponse,
    Text,
    TopK,
    Truncate,
    Truncated,
    response_example,
    whole,
)

PromptName = Annotated[
    str | None,
    Field(
        description="Name of the model's prompt that goes before each text, see /models. Default: the model's default "
        'prompt; "" is no prompt.'
    ),
]

Dimensions = Annotated[int, Field(ge=1), whole(1)]
EncodingFormat = Literal["float", "base64", "binary"]


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
    dimensions: Dimensions | None = Field(
        None, description="Compare by the first numbers of each vector. Default: all."
    )
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
        {"text_index": 0, "index": 1, "score": 0.68, "truncated": False},
        {"text_index": 0, "index": 0, "score": 0.2, "truncated": False},
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
        {"index": 1, "score": 0.68, "truncated": False},
        {"index": 0, "score": 0.2, "truncated": False},
    )
    results: list[RerankResult]


class EmbedRequest(Schema):
    """One text or a list of texts."""

    example: ClassVar[Example] = {"text": "How do I reset my password?"}
    text: Text
    prompt_name: PromptName = None
    dimensions: Dimensions | None = Field(
        None,
        description="Keep the first numbers of each vector, of length 1 again if the model's vectors are. At most "
        "`embedding_size` of /models. Default: all.",
    )
    encoding_format: EncodingFormat = Field(
        "float",
        description="float: numbers. base64: a string of little-endian float32. binary: the response is a NumPy file "
        "(.npy) of float32, one row a text.",
    )
    truncate: Truncate = False
    model: ModelName = None


class EmbedResult(Schema):
    """A vector, of length 1 unless the model's own files leave it as it is."""

    embedding: list[float] | str = Field(
        description="As many numbers as the model gives or `dimensions` says, or a string with base64; the example "
        "shows the first few."
    )
    truncated: Truncated


class EmbedResponse(TaskResponse):
    """One result for each text, in order."""

    example: ClassVar[Example] = response_example(
        "similarity", 9, {"embedding": [0.00690308, -0.0630234, -0.072044], "truncated": False}
    )
    results: list[EmbedResult]
