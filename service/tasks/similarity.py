"""Candidates ranked by their likeness to texts: /similarity."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from bert.tasks.vectors.similarity import rank
from service.pipeline.inputs import Texts
from service.tasks.schema import (
    RESULT_BYTES,
    Dimensions,
    Example,
    ModelName,
    PromptName,
    Schema,
    Text,
    TopK,
    Truncate,
    TypedDict,
    complete,
)
from service.tasks.task import Call, Embedded, Results, ServedTask, embed, prompted, response_example


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


@complete
class SimilarityResult(TypedDict):
    """A candidate and its similarity to the text."""

    text_index: Annotated[int, Field(description="Index of the text in the request, 0 for a single string.")]
    index: Annotated[int, Field(description="Index of the candidate in the request.")]
    score: Annotated[
        float, Field(description="Cosine of both vectors, or their dot product if the model compares by it.")
    ]
    truncated: Annotated[
        bool, Field(description="True if the text or the candidate was cut at the model's length.")
    ]


class Similarity(ServedTask[SimilarityRequest]):
    """Rank candidates by the similarity of their meaning to a text's."""

    path, model_task = "/similarity", "similarity"
    request, result = SimilarityRequest, SimilarityResult
    order = "The candidates of each text, best first, in the order of the texts."
    texts, by_row = ("text", "candidates"), False
    example = response_example(
        "similarity",
        22,
        {"text_index": 0, "index": 1, "score": 0.68, "truncated": False},
        {"text_index": 0, "index": 0, "score": 0.2, "truncated": False},
    )

    async def run(self, call: Call, request: SimilarityRequest) -> Results:
        """Answer a request."""
        text, candidates = Texts.of("text", request.text), Texts.of("candidates", request.candidates)
        call.check_count(text, candidates)
        text = prompted(text, call.model, request.prompt_name)
        candidates = prompted(
            candidates, call.model, request.candidates_prompt_name, "candidates_prompt_name"
        )
        embedded = await embed(
            call, text, candidates, truncate=request.truncate, dimensions=request.dimensions, shown=False
        )
        count = len(text) * min(len(candidates), request.top_k or len(candidates))
        call.note_size(text, count * RESULT_BYTES)
        return Results(
            len(text) * len(candidates),
            lambda _: _ranked(call, len(text), embedded, request.top_k),
            is_lazy=True,
        )


def _ranked(call: Call, count: int, embedded: Embedded, top_k: int | None) -> Iterator[SimilarityResult]:
    """Rank the vectors after the first `count`, best first, for each of these, as the model compares vectors."""
    asked, others = embedded.vectors[:count], embedded.vectors[count:]
    cut, similarity = embedded.truncated, call.model.spec.similarity
    for number, vector in enumerate(asked):
        for found in rank(vector, others, top_k, similarity):
            yield {
                "text_index": number,
                "index": found.index,
                "score": found.score,
                "truncated": cut[number] or cut[count + found.index],
            }
