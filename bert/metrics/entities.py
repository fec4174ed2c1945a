"""Scores of named entities: an entity counts when its type and both of its ends are right (CoNLL-2003)."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TypeScores:
    """Precision, recall and F1; `support` is the number of gold entities."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class EntityScores(TypeScores):
    """Precision, recall and F1 over all entities together (micro), and for each type alone."""

    types: dict[str, TypeScores]


def bio_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities of one BIO sequence as (type, first, one past the last).

    As conlleval and seqeval's default mode read it, an I- tag after O or after another type begins an entity.
    """
    spans: list[tuple[str, int, int]] = []
    kind, first = "", 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix != "I" or tag_kind != kind):
            spans.append((kind, first, position))
            kind = ""
        if prefix in ("B", "I") and not kind:
            kind, first = tag_kind, position
    return spans


def entity_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScores:
    """Score BIO tags, a sequence a sentence, as seqeval's default does; a share of nothing is 0.

    Raises ValueError if the sentences differ in number or in length.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold sentences but {len(predicted)} predicted")
    for sentence, (gold_tags, tags) in enumerate(zip(gold, predicted, strict=True)):
        if len(gold_tags) != len(tags):
            raise ValueError(f"sentence {sentence} has {len(gold_tags)} gold tags but {len(tags)} predicted")
    return span_f1([set(bio_spans(tags)) for tags in gold], [set(bio_spans(tags)) for tags in predicted])


def span_f1(
    gold: Sequence[Collection[tuple[Any, ...]]], predicted: Sequence[Collection[tuple[Any, ...]]]
) -> EntityScores:
    """Score the entities of each text, (type, ...), none of them twice; a share of nothing is 0."""
    in_gold, in_predicted, in_both = Counter[str](), Counter[str](), Counter[str]()
    for gold_spans, spans in zip(gold, predicted, strict=True):
        in_gold.update(span[0] for span in gold_spans)
        in_predicted.update(span[0] for span in spans)
        in_both.update(span[0] for span in set(gold_spans) & set(spans))
    total = _scores(in_both.total(), in_gold.total(), in_predicted.total())
    kinds = sorted(in_gold | in_predicted)
    types = {kind: _scores(in_both[kind], in_gold[kind], in_predicted[kind]) for kind in kinds}
    return EntityScores(total.precision, total.recall, total.f1, total.support, types)


def _scores(both: int, gold: int, predicted: int) -> TypeScores:
    precision, recall = both / max(predicted, 1), both / max(gold, 1)
    f1 = 2 * both / (gold + predicted) if gold + predicted else 0.0
    return TypeScores(precision, recall, f1, gold)
