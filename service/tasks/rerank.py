"""Candidates ranked for a query, by a cross-encoder, token vectors or embeddings: /rerank. N texts, K candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from bert.errors import FieldError, InvalidRequestError, NoDefaultModelError
from bert.graph_inputs import joined
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import sigmoid
from bert.tasks.vectors.similarity import likeness
from bert.tasks.vectors.token_vectors import maxsim
from service.engine.models import Floats, Model, Registry
from service.pipeline.inputs import Texts
from service.tasks.schema import Example, ModelName, Schema, Text, TopK, Truncate, TypedDict, complete
from service.tasks.task import (
    Call,
    Embedded,
    ListItems,
    Results,
    ServedTask,
    embed,
    embed_tokens,
    prompted,
    response_example,
)

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Names of prompts that sentence-transformers puts before queries and documents."""


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


@complete
class RerankResult(TypedDict):
    """A candidate and how well it answers the query."""

    index: Annotated[int, Field(description="Index of the candidate in the request.")]
    score: Annotated[
        float,
        Field(
            description="From a cross-encoder 0 to 1, the sigmoid of its number; from embeddings as in /similarity; from "
            "token vectors MaxSim, a sum over the query's tokens."
        ),
    ]
    truncated: Annotated[
        bool, Field(description="True if the query or the candidate was cut at the model's length.")
    ]


class Rerank(ServedTask[RerankRequest]):
    """Rank candidates by how well they answer a query: by a cross-encoder, by token vectors, or by embeddings."""

    path, model_task = "/rerank", None
    request, result = RerankRequest, RerankResult
    order = "The candidates, best first."
    texts, by_row = ("query", "candidates"), False
    example = response_example(
        "similarity",
        22,
        {"index": 1, "score": 0.68, "truncated": False},
        {"index": 0, "score": 0.2, "truncated": False},
    )

    async def run(self, call: Call, request: RerankRequest) -> Results:
        """Answer a request."""
        query, candidates = Texts.of("query", request.query), Texts.of("candidates", request.candidates)
        found = await relevance(call, query, candidates, truncate=request.truncate)
        best_first = found.best_first(request.top_k)
        scores, cut = found.scores, found.truncated

        def rows(_: ListItems) -> list[RerankResult]:
            return [{"index": i, "score": float(scores[i]), "truncated": cut[i]} for i in best_first]

        return Results(len(best_first), rows)

    def find(self, registry: Registry, name: str | None, request: RerankRequest) -> Model:
        """Return the model that ranks candidates."""
        return find_reranker(registry, name)


@dataclass(frozen=True, slots=True)
class Relevance:
    """Scores (K,) of candidates for a query, and which pairs were cut."""

    scores: Floats
    """Scores as users see them: the sigmoid of a cross-encoder's logit (0 to 1), the likeness of two embeddings (mostly a
    cosine), or MaxSim of token vectors."""
    raw_scores: Floats
    """Logits of a cross-encoder; the same likeness from embeddings."""
    truncated: Sequence[bool]
    by_embeddings: bool

    @staticmethod
    def of_vectors(embedded: Embedded, similarity: str = "cosine") -> "Relevance":
        """Return the relevance by the vectors of the query and, after it, the candidates; `similarity` as in a TaskSpec."""
        scores = likeness(embedded.vectors[:1], embedded.vectors[1:], similarity)
        query, *candidates = embedded.truncated
        return Relevance(scores, scores, [query or cut for cut in candidates], by_embeddings=True)

    def best_first(self, count: int | None) -> list[int]:
        """Return the indices of the `count` best (None: all); equal ones keep their order."""
        order: list[int] = np.argsort(-self.raw_scores, kind="stable")[:count].tolist()
        return order


async def relevance(call: Call, query: Texts, candidates: Texts, *, truncate: bool) -> Relevance:
    """Return how well each candidate answers one query, by a model of `find_reranker`."""
    call.check_count(query, candidates)
    spec = call.model.spec
    if is_cross_encoder(spec):
        return await numbers(call, query, candidates, truncate=truncate)
    if spec.token_vectors is not None:
        scores, cut = await token_scores(call, query, candidates, truncate=truncate)
        return Relevance(scores, scores, cut, by_embeddings=False)
    for_query, for_candidates = prompt_names(spec)
    query, candidates = (
        prompted(query, call.model, for_query),
        prompted(candidates, call.model, for_candidates),
    )
    embedded = await embed(call, query, candidates, truncate=truncate, shown=False)
    return Relevance.of_vectors(embedded, spec.similarity)


async def token_scores(
    call: Call, query: Texts, candidates: Texts, *, truncate: bool
) -> tuple[Floats, list[bool]]:
    """Return the MaxSim of each candidate (K,) for one query, and whether it or the query was cut."""
    found = await embed_tokens(call, (query, "query"), (candidates, "document"), truncate=truncate)
    how = call.model.spec.token_vectors
    of_query, *documents = found.vectors
    scores = await call.decode(
        len(documents), lambda: maxsim(of_query, documents, mean=how is not None and how.mean)
    )
    first, *rest = found.truncated
    return np.asarray(scores), [first or cut for cut in rest]


async def numbers(call: Call, text: Texts, pair: Texts | None, *, truncate: bool) -> Relevance:
    """Return the numbers that a classifier with one label gives texts or pairs."""
    encodings = await call.encode(text, pair, truncate=truncate)
    logits = joined(await call.infer(encodings))[:, 0]
    truncated = [encoding.truncated for encoding in encodings]
    return Relevance(sigmoid(logits), logits, truncated, by_embeddings=False)


def prompt_names(spec: TaskSpec) -> tuple[str | None, str | None]:
    """Return the prompts for a query and for a candidate; None is the model's default."""
    query = next((name for name in QUERY_PROMPTS if name in spec.prompts), None)
    return query, next((name for name in DOCUMENT_PROMPTS if name in spec.prompts), None)


def is_cross_encoder(spec: TaskSpec) -> bool:
    """Tell whether a model gives one number for a pair of texts, or may do so, where nothing says what it reads."""
    return TASKS[spec.task].may_read_pairs and spec.pair is not False and len(spec.labels) == 1


def can_rank(model: Model) -> bool:
    """Tell whether a model can rank candidates."""
    return model.embedding_size is not None or is_cross_encoder(model.spec)


def find_reranker(registry: Registry, name: str | None) -> Model:
    """Return the model that ranks candidates: the named one, else a cross-encoder, else the default of token vectors, or of
    embeddings.

    Of several cross-encoders the default of /classify is taken, else the first. Raises what `Registry.find` does, and
    InvalidRequestError if the named model can do neither.
    """
    if name is None:
        default = registry.models.get(registry.defaults.get("classification", ""))
        models = [default, *registry.models.values()] if default is not None else registry.models.values()
        found = next((model for model in models if model.spec.pair and is_cross_encoder(model.spec)), None)
        if found is not None:
            return found
        task = next((task for task in ("token_vectors", "similarity") if task in registry.defaults), None)
        if task is None:
            raise NoDefaultModelError("rerank", sorted(registry.models))
        return registry.find(None, task)
    model = registry.find(name, None)
    if not can_rank(model):
        fitting = sorted(other.name for other in registry.models.values() if can_rank(other))
        message = (
            f"model {name!r} cannot rank: that takes a classifier with one label that reads pairs, or embeddings: "
            f"{', '.join(fitting) or 'none is loaded'}"
        )
        raise InvalidRequestError([FieldError("model", message)])
    return model
