"""Ranking candidates for a query: which model does it, and its scores. N texts, E numbers of an embedding, K candidates."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert.errors import FieldError, InvalidRequestError, NoDefaultModelError
from bert.tasks.similarity import likeness
from bert.tasks.spec import TaskSpec
from bert.tasks.task import sigmoid
from service.engine.engine_protocol import Floats
from service.engine.loaded_model import Model
from service.engine.model_registry import Registry


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors (N, E), and which texts were cut."""

    vectors: Floats
    truncated: list[bool]


@dataclass(frozen=True, slots=True)
class Relevance:
    """Scores (K,) of candidates for a query, and which pairs were cut."""

    scores: Floats
    """From a cross-encoder the sigmoid of its logit, 0 to 1; from embeddings their likeness, mostly a cosine."""
    raw_scores: Floats
    """Logits of a cross-encoder; the same likeness from embeddings."""
    truncated: Sequence[bool]
    by_embeddings: bool

    @staticmethod
    def of_logits(logits: Floats, truncated: Sequence[bool]) -> "Relevance":
        """Return the relevance by a cross-encoder's logits (K, 1)."""
        return Relevance(sigmoid(logits[:, 0]), logits[:, 0], truncated, by_embeddings=False)

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


QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""Names of prompts that sentence-transformers puts before queries and documents."""


def prompt_names(spec: TaskSpec) -> tuple[str | None, str | None]:
    """Return the prompts for a query and for a candidate; None is the model's default."""
    query = next((name for name in QUERY_PROMPTS if name in spec.prompts), None)
    return query, next((name for name in DOCUMENT_PROMPTS if name in spec.prompts), None)


def is_cross_encoder(spec: TaskSpec) -> bool:
    """Tell whether a model gives one number for a pair of texts, or may do so, where nothing says what it reads."""
    return spec.task == "classification" and spec.pair is not False and len(spec.labels) == 1


def find_reranker(registry: Registry, name: str | None) -> Model:
    """Return the model that ranks candidates: the named one, else a cross-encoder, else the default of embeddings.

    Of several cross-encoders the default of /classify is taken, else the first. Raises what `Registry.find` does, and
    InvalidRequestError if the named model can do neither.
    """
    if name is None:
        default = registry.models.get(registry.defaults.get("classification", ""))
        models = [default, *registry.models.values()] if default is not None else registry.models.values()
        found = next((model for model in models if model.spec.pair and is_cross_encoder(model.spec)), None)
        if found is not None:
            return found
        if "similarity" not in registry.defaults:
            raise NoDefaultModelError("rerank", sorted(registry.models))
        return registry.find(None, "similarity")
    model = registry.find(name, None)
    if model.spec.task != "similarity" and not is_cross_encoder(model.spec):
        fitting = sorted(
            other.name
            for other in registry.models.values()
            if other.spec.task == "similarity" or is_cross_encoder(other.spec)
        )
        message = (
            f"model {name!r} cannot rank: that takes a classifier with one label that reads pairs, or embeddings: "
            f"{', '.join(fitting) or 'none is loaded'}"
        )
        raise InvalidRequestError([FieldError("model", message)])
    return model
