"""Logits of every piece to entities, by the strategies of transformers' token classification pipeline.

The default, that a word's first piece speaks for it, needs no other piece and is `ner.decode`.
T pieces, W words, K labels.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Pieces
from bert.tasks import ner
from bert.tasks.ner import Entity
from bert.tasks.spec import TaskSpec
from bert.tasks.tags import TagScheme, without_tags
from bert.tasks.task import Floats, softmax
from bert.text.offsets import span_bounds

Indices = NDArray[np.intp]


class Aggregation(StrEnum):
    """Ways from pieces to entities."""

    FIRST = "first"
    """A word has the tag of its first piece."""
    AVERAGE = "average"
    """A word has the best tag of its pieces' mean probabilities."""
    MAX = "max"
    """A word has the tag of its most certain piece."""
    SIMPLE = "simple"
    """Neighbouring pieces are joined by their tags, whatever their words."""
    NONE = "none"
    """Each piece with a tag is an entity, and its label is the tag."""


AGGREGATION_NAMES = " or ".join(", ".join(Aggregation).rsplit(", ", 1))
"""All names, for messages."""


@dataclass(frozen=True, slots=True)
class TaggedPiece:
    """A piece of the text that has a tag, which is its entity's label."""

    entity: Entity
    index: int
    """Index among the text's pieces."""
    token_id: int

    @property
    def start(self) -> int:
        """Return where the piece starts, in code points."""
        return self.entity.start

    @property
    def end(self) -> int:
        """Return where it ends."""
        return self.entity.end


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Options of a request: the way from a text's pieces to entities, and the choice of entities to keep."""

    aggregation: Aggregation = Aggregation.FIRST
    min_score: float = 0.0
    types: frozenset[str] | None = None
    """Types of the entities that are kept; None keeps all."""
    left_out: frozenset[str] = frozenset()
    """Kinds of words that no entity has, beside those that the model's spec leaves out."""

    @property
    def by_piece(self) -> bool:
        """True where the logits of all pieces are needed, not of each word's first alone."""
        return self.aggregation is not Aggregation.FIRST

    def decode(self, text: str, pieces: Pieces, logits: Floats, spec: TaskSpec) -> list[Entity]:
        """Turn logits of words (W, K), or of pieces (T, K) if `by_piece`, into the entities that are kept.

        Raises ValueError if the logits do not fit.
        """
        if not self.by_piece:
            found = ner.decode(text, pieces, logits, spec, self.left_out)
        else:
            found = decode(text, pieces, logits, spec, self.aggregation, self.left_out)
        if self.min_score > 0:
            found = [entity for entity in found if entity.score >= self.min_score]
        if self.types is not None:
            shown = self._shown(spec.labels)
            found = [entity for entity in found if entity.label in shown]
        return found

    def _shown(self, labels: Sequence[str]) -> frozenset[str]:
        """Return the labels that entities of the types have: the types, or their tags."""
        assert self.types is not None
        if self.aggregation is not Aggregation.NONE:
            return self.types
        scheme = TagScheme.of(labels)
        return frozenset(label for tag, label in enumerate(labels) if scheme.kind(tag) in self.types)


PLAIN = EntityOptions()


def pieces_as_words(pieces: Pieces) -> Pieces:
    """Return pieces that are words of their own: in windows over them the head is evaluated at each."""
    return Pieces(pieces.ids, pieces.offsets, np.arange(len(pieces), dtype=np.int32), pieces.segments)


def decode(
    text: str,
    pieces: Pieces,
    logits: Floats,
    spec: TaskSpec,
    aggregation: Aggregation,
    left_out: Collection[str] = (),
) -> list[Entity]:
    """Turn the pieces' logits (T, K) into entities in the order of the text, by any strategy.

    Words of the kinds in `left_out`, and in the spec's, belong to no entity. Raises ValueError if the logits do not fit.
    """
    labels, kinds = spec.labels, {*spec.left_out, *left_out}
    if aggregation is Aggregation.NONE:
        spec = replace(spec, left_out=tuple(kinds))
        return [piece.entity for piece in tagged_pieces(text, pieces, logits, spec)]
    probabilities = _probabilities(text, pieces, logits, labels, kinds)
    if aggregation is Aggregation.SIMPLE:
        starts, ends = span_bounds(pieces.offsets)
        bounds = np.stack([np.minimum(starts, len(text)), ends], axis=1)
    else:
        heads = ner.word_heads(pieces)
        if not len(heads):
            return []
        probabilities = _of_words(probabilities, pieces.word_ids, heads, aggregation)
        bounds = ner.word_bounds(pieces, heads)
    tags, scores = probabilities.argmax(axis=-1), probabilities.max(axis=-1, initial=0.0)
    found = ner.joined(text, TagScheme.of(labels), tags, scores, bounds)
    found = ner.trimmed(text, found, kinds)
    return [entity for entity in found if entity.text]  # blank pieces may have tags too


def tagged_pieces(text: str, pieces: Pieces, logits: Floats, spec: TaskSpec) -> Iterator[TaggedPiece]:
    """Return the pieces that have a tag and a character, by the logits of all (T, K).

    Raises ValueError if the logits do not fit.
    """
    labels = spec.labels
    probabilities = _probabilities(text, pieces, logits, labels, spec.left_out)
    tags, scores = probabilities.argmax(axis=-1), probabilities.max(axis=-1, initial=0.0)
    is_shown = (TagScheme.of(labels).kind_of[tags] >= 0) & (pieces.offsets[:, 0] < pieces.offsets[:, 1])
    at = np.flatnonzero(is_shown)
    columns = (at, tags[at], scores[at], pieces.ids[at], *pieces.offsets[at].T)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return (
        TaggedPiece(Entity(text[start:end], labels[tag], start, end, score), index, token_id)
        for index, tag, score, token_id, start, end in rows
    )


def _probabilities(
    text: str, pieces: Pieces, logits: Floats, labels: Sequence[str], left_out: Collection[str]
) -> Floats:
    if logits.shape != (len(pieces), len(labels)):
        raise ValueError(f"logits have shape {logits.shape}; {(len(pieces), len(labels))} is needed")
    if left_out:
        logits = without_tags(text, pieces.offsets, logits, TagScheme.of(labels), left_out)
    return softmax(logits)


def _of_words(
    probabilities: Floats, word_ids: NDArray[np.int32], heads: Indices, aggregation: Aggregation
) -> Floats:
    """Return the probabilities of words (W, K) from their pieces' (T, K); of equally certain pieces the first counts."""
    inside = np.flatnonzero(word_ids >= 0)
    first = np.searchsorted(inside, heads)  # (W,): each word's first piece among those of words
    if aggregation is Aggregation.AVERAGE:
        lengths = np.diff(np.append(first, len(inside)))
        sums: Floats = (
            np.add.reduceat(probabilities[inside], first, axis=0) if len(first) else probabilities[:0]
        )
        return sums / lengths[:, None].astype(probabilities.dtype)
    by_certainty = np.lexsort((-probabilities[inside].max(axis=-1, initial=0.0), word_ids[inside]))
    return probabilities[inside[by_certainty[first]]]
