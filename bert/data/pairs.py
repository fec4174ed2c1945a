"""Pairs of texts to learn embeddings from: with scores, or positive ones, perhaps with hard negatives."""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert.data.examples import TextExample
from bert.data.rows import ENTAILMENT
from bert.errors import ConfigError, DataError

logger = logging.getLogger(__name__)
FIRST = ("text", "anchor", "query", "question", "sentence1", "premise")
"""Names that the column of first texts may have, the preferred one first."""
POSITIVE = ("positive", "answer")
"""Names of second texts that say that they belong to the first."""
SECOND = ("text_pair", *POSITIVE, "sentence2", "hypothesis")
LABEL = ("label", "score", "gold_label")
_NEGATIVE = re.compile(r"negatives?|negative_\d+")


def pair_columns(path: Path, named: Mapping[str, str], present: Collection[str]) -> dict[str, Any]:
    """Return the fields of TextColumns for pairs, from what `columns` names and what is `present`.

    The second text is a positive where its column or a column of negatives says so, or where `columns` names an empty
    label. Raises ConfigError for columns that name scores and negatives.
    """
    negatives = _negatives(named, present)
    second = named.get("text_pair") or _found(SECOND, present)
    is_positive = named.get("label") == "" or bool(negatives) or second in POSITIVE
    if negatives and named.get("label"):
        raise ConfigError(
            f'columns of {path} names a label and negatives: pairs have scores, or negatives ({{"negative": ""}})'
        )
    label = named.get("label", _found(LABEL, present))
    if negatives and label and "negative" not in named and second not in POSITIVE:
        raise ConfigError(
            f"{path} has scores ({label!r}) and negatives ({', '.join(map(repr, negatives))}): say which are read, "
            '"columns": {"negative": ""} or {"label": ""}'
        )
    if negatives:
        label = ""
    if label is None:
        label = "" if is_positive else "label"
    fields: dict[str, Any] = {
        "text": named.get("text") or _found(FIRST, present) or ("anchor" if is_positive else "text"),
        "text_pair": second or ("positive" if is_positive else "text_pair"),
        "label": label or None,
        "negatives": None if label else negatives,
    }
    return {**fields, "id": named["id"]} if "id" in named else fields


def _found(names: Sequence[str], present: Collection[str]) -> str | None:
    return next((name for name in names if name in present), None)


def _negatives(named: Mapping[str, str], present: Collection[str]) -> tuple[str, ...]:
    """Return the columns of negatives, those with numbers in the order of their numbers."""
    if "negative" in named:
        return tuple(name.strip() for name in named["negative"].split(",") if name.strip())
    return tuple(sorted(filter(_NEGATIVE.fullmatch, present), key=lambda name: (len(name), name)))


def from_entailment(path: Path, examples: Sequence[TextExample]) -> list[TextExample]:
    """Turn NLI rows into positive pairs: a premise and what it entails, with a contradiction of it as hard negative.

    Pairs with scores, and positive ones, stay as they are. Raises DataError for a file that has numbers and NLI labels,
    other labels, pairs without a label, or no entailment.
    """
    unlabelled = sum(example.label is None and example.negatives is None for example in examples)
    if unlabelled:
        raise DataError(path, None, f"has {unlabelled} pairs without a score, of {len(examples)}")
    labels = {example.label for example in examples if isinstance(example.label, str)}
    if not labels:
        return list(examples)
    if unknown := labels - set(ENTAILMENT):
        known = f"numbers, or {', '.join(ENTAILMENT)}"
        raise DataError(path, None, f"has the label {min(unknown)!r}; similarity is learned from {known}")
    if odd := next((example for example in examples if not isinstance(example.label, str)), None):
        raise DataError(path, None, f"has labels of NLI and the label {odd.label!r}")
    contradictions = defaultdict[str, list[str]](list)
    for example in examples:
        if example.label == "contradiction" and example.text_pair:
            contradictions[example.text].append(example.text_pair)
    pairs, taken = [], defaultdict[str, int](int)
    for example in examples:
        if example.label == "entailment":
            found, number = contradictions[example.text], taken[example.text]
            taken[example.text] += 1
            negative = (found[number % len(found)],) if found else ()
            pairs.append(replace(example, label=None, negatives=negative))
    if not pairs:
        raise DataError(path, None, "has no row with the label 'entailment'")
    logger.info(
        "%s: %d NLI rows give %d pairs, %d of them with a contradiction as hard negative",
        path, len(examples), len(pairs), sum(bool(pair.negatives) for pair in pairs),
    )  # fmt: skip
    return pairs
