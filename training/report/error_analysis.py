"""Mistakes of a model on held-out data: what a report shows of them, and those of texts with labels or numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import TextExample
from bert.metrics.correlation import ranks

MISTAKES_SHOWN = 20
EXCERPT = 300
"""Code points of a text that a report shows."""
TRUNCATED = "_truncated"
"""Suffix of a score over truncated texts, beside the score over all of their windows."""


@dataclass(frozen=True)
class Mistake:
    """An example with a wrong prediction."""

    id: str
    text: str
    gold: str
    predicted: str
    confidence: float | None = None
    """Model's score of its own prediction; None where the task has none."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The scores of the best prediction that does not look at the text."""

    rule: str
    """Description of the prediction, such as "always 'positive'"."""
    scores: Mapping[str, float]
    """Name of a score of the task → its value."""


@dataclass(frozen=True)
class Findings:
    """Error analysis of one held-out file."""

    examples: int
    wrong: int
    mistakes: tuple[Mistake, ...]
    """Worst mistakes first, at most MISTAKES_SHOWN."""
    by_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Class or entity type → precision, recall, f1 (shares of 1), support."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Kind of outcome → number of examples or entities."""
    labels: tuple[str, ...] = ()
    confusion: NDArray[np.int64] | None = None
    """(K, K): row gold, column predicted, in the order of `labels`."""
    never_predicted: tuple[str, ...] = ()
    """Classes that gold labels have and no prediction has."""


@dataclass(frozen=True)
class DevFile:
    """One held-out file, scored by the checkpoint that is kept."""

    name: str
    scores: Mapping[str, float]
    findings: Findings | None = None
    baseline: Baseline | None = None


def class_findings(
    examples: Sequence[TextExample],
    predictions: Sequence[str],
    labels: Sequence[str],
    confidences: Sequence[float] | None = None,
) -> Findings:
    """Analyse one label a text: the confusion matrix, and the mistakes with the highest confidence."""
    place = {label: k for k, label in enumerate(labels)}
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    for example, predicted in zip(examples, predictions, strict=True):
        confusion[place[str(example.label)], place[predicted]] += 1
    sure = confidences if confidences is not None else [None] * len(examples)
    wrong = [
        Mistake(e.id, _text_of(e), str(e.label), predicted, score)
        for e, predicted, score in zip(examples, predictions, sure, strict=True)
        if e.label != predicted
    ]
    worst = sorted(wrong, key=lambda mistake: -(mistake.confidence or 0.0))
    gold, given, both = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    return Findings(
        len(examples),
        len(wrong),
        tuple(worst[:MISTAKES_SHOWN]),
        {label: _class_scores(int(both[k]), int(gold[k]), int(given[k])) for label, k in place.items()},
        labels=tuple(labels),
        confusion=confusion,
        never_predicted=tuple(label for label, k in place.items() if gold[k] and not given[k]),
    )


def multi_label_findings(
    examples: Sequence[TextExample], predictions: Sequence[Sequence[str]], labels: Sequence[str]
) -> Findings:
    """Analyse any number of labels a text: scores of each label, and the texts with most labels wrong."""
    gold, given, both, wrong = Counter[str](), Counter[str](), Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        right, chosen = set(example.label if isinstance(example.label, tuple) else ()), set(predicted)
        gold.update(right)
        given.update(chosen)
        both.update(right & chosen)
        if right != chosen:
            mistake = Mistake(example.id, _text_of(example), _joined(right), _joined(chosen))
            wrong.append((len(right ^ chosen), mistake))
    return Findings(
        len(examples),
        len(wrong),
        worst(wrong),
        {label: _class_scores(both[label], gold[label], given[label]) for label in labels},
        never_predicted=tuple(label for label in labels if gold[label] and not given[label]),
    )


def number_findings(examples: Sequence[TextExample], predictions: Sequence[float]) -> Findings:
    """Analyse a number a text: the predictions whose rank is farthest off."""
    gold = np.array([float(e.label) for e in examples if isinstance(e.label, float)])
    if len(gold) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(gold)} examples with a number")
    # Ranks of both have one scale: similarity has 0 to 5 for gold and cosines for predictions.
    far = np.abs(ranks(gold) - ranks(np.asarray(predictions, np.float64)))
    worst = [
        Mistake(examples[i].id, _text_of(examples[i]), f"{gold[i]:g}", f"{predictions[i]:.3f}")
        for i in np.argsort(-far, kind="stable")[:MISTAKES_SHOWN]
    ]
    return Findings(len(examples), 0, tuple(worst))


def _class_scores(both: int, gold: int, given: int) -> dict[str, float]:
    """Return one class's scores from its counts: right, in gold, in the predictions."""
    f1 = 2 * both / (gold + given) if gold + given else 0.0
    return {"precision": both / max(given, 1), "recall": both / max(gold, 1), "f1": f1, "support": gold}


def worst(wrong: list[tuple[int, Mistake]]) -> tuple[Mistake, ...]:
    """Return the mistakes with the highest counts, equal ones in the order of the file."""
    return tuple(mistake for _, mistake in sorted(wrong, key=lambda pair: -pair[0])[:MISTAKES_SHOWN])


def _text_of(example: TextExample) -> str:
    texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    return " ↵ ".join(map(excerpt, texts))


def excerpt(text: str) -> str:
    """Return the beginning of a text, at most EXCERPT code points."""
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def _joined(labels: set[str]) -> str:
    return ", ".join(sorted(labels)) or "(none)"
