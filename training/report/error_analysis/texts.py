"""Mistakes on texts with a label, with several, with a number, and on multiple choice."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import ChoiceExample, TextExample
from training.report.error_analysis.base import (
    MISTAKES_SHOWN,
    Findings,
    Mistake,
    class_scores,
    excerpt,
    shown,
)


def class_findings(
    examples: Sequence[TextExample],
    predictions: Sequence[str],
    labels: Sequence[str],
    confidences: Sequence[float] | None = None,
) -> Findings:
    """One label a text: the confusion matrix, and the mistakes of which the model was most sure."""
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
    by_class = {label: class_scores(int(both[k]), int(gold[k]), int(given[k])) for label, k in place.items()}
    never = tuple(label for label, k in place.items() if gold[k] and not given[k])
    return Findings(
        len(examples), len(wrong), shown(worst), by_class, {}, tuple(labels), confusion, never_predicted=never
    )


def multi_label_findings(
    examples: Sequence[TextExample], predictions: Sequence[Sequence[str]], labels: Sequence[str]
) -> Findings:
    """Any number of labels a text: scores of each label, and the texts with most labels wrong."""
    gold, given, both, wrong = Counter[str](), Counter[str](), Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        right, chosen = set(example.label if isinstance(example.label, tuple) else ()), set(predicted)
        gold.update(right)
        given.update(chosen)
        both.update(right & chosen)
        if right != chosen:
            mistake = Mistake(example.id, _text_of(example), _listed(right), _listed(chosen))
            wrong.append((len(right ^ chosen), mistake))
    wrong.sort(key=lambda pair: -pair[0])
    by_class = {label: class_scores(both[label], gold[label], given[label]) for label in labels}
    never = tuple(label for label in labels if gold[label] and not given[label])
    worst = shown([mistake for _, mistake in wrong])
    return Findings(len(examples), len(wrong), worst, by_class, never_predicted=never)


def number_findings(examples: Sequence[TextExample], predictions: Sequence[float]) -> Findings:
    """A number a text: those farthest off.

    For similarity, where gold (0-5) and cosine have other scales, both are first put in ranks from 0 to 1.
    """
    gold = np.array([float(e.label) for e in examples if isinstance(e.label, float)])
    if len(gold) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(gold)} examples with a number")
    far = np.abs(_ranks(gold) - _ranks(np.asarray(predictions, np.float64)))
    worst = [
        Mistake(examples[i].id, _text_of(examples[i]), f"{gold[i]:g}", f"{predictions[i]:.3f}")
        for i in np.argsort(-far, kind="stable")[:MISTAKES_SHOWN]
    ]
    return Findings(len(examples), 0, tuple(worst))


def choice_findings(examples: Sequence[ChoiceExample], predictions: Sequence[int]) -> Findings:
    """Multiple choice: the endings that were taken for the right one."""
    wrong = [
        Mistake(e.id, excerpt(e.prompt), e.choices[e.label], e.choices[predicted])
        for e, predicted in zip(examples, predictions, strict=True)
        if e.label != predicted
    ]
    return Findings(len(examples), len(wrong), shown(wrong))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0 to 1, equal values sharing their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means = (last - counts + last - 1) / 2
    return np.asarray(means[place] / max(len(values) - 1, 1), np.float64)


def _text_of(example: TextExample) -> str:
    if example.text_pair is None:
        return excerpt(example.text)
    return f"{excerpt(example.text)} ↵ {excerpt(example.text_pair)}"


def _listed(labels: set[str]) -> str:
    return ", ".join(sorted(labels)) or "(none)"
