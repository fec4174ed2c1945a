"""Mistakes of a model on held-out data, task by task: counts, scores by class, the worst examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.metrics.correlation import ranks
from bert.metrics.entities import bio_spans, entity_f1
from bert.metrics.squad import squad_em_f1

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
        _worst(wrong),
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


def retrieval_findings(
    examples: Sequence[TextExample], nearest: Sequence[str], is_right: NDArray[np.bool_]
) -> Findings:
    """Analyse a search: texts to which another one than their own is the nearest."""
    wrong = [
        Mistake(e.id, _excerpt(e.text), _excerpt(e.text_pair or ""), _excerpt(found))
        for e, found, right in zip(examples, nearest, is_right, strict=True)
        if not right
    ]
    return Findings(len(examples), len(wrong), tuple(wrong[:MISTAKES_SHOWN]))


def choice_findings(examples: Sequence[ChoiceExample], predictions: Sequence[int]) -> Findings:
    """Analyse multiple choice: the wrong endings that were chosen."""
    wrong = [
        Mistake(e.id, _excerpt(e.prompt), e.choices[e.label], e.choices[predicted])
        for e, predicted in zip(examples, predictions, strict=True)
        if e.label != predicted
    ]
    return Findings(len(examples), len(wrong), tuple(wrong[:MISTAKES_SHOWN]))


def entity_findings(examples: Sequence[WordsExample], predictions: Sequence[Sequence[str]]) -> Findings:
    """Analyse BIO labels: scores of each type, kinds of mistake, and the sentences with most wrong entities."""
    types = entity_f1([e.labels for e in examples], predictions).types
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        gold, given = set(bio_spans(example.labels)), set(bio_spans(predicted))
        if gold != given:
            counts.update(_entity_mistakes(gold, given))
            text = _excerpt(" ".join(example.words))
            mistake = Mistake(example.id, text, _entities(example, gold), _entities(example, given))
            wrong.append((len(gold ^ given), mistake))
    predicted_types = {kind for labels in predictions for kind, _, _ in bio_spans(labels)}
    return Findings(
        len(examples),
        len(wrong),
        _worst(wrong),
        {
            name: {"precision": t.precision, "recall": t.recall, "f1": t.f1, "support": t.support}
            for name, t in types.items()
        },
        dict(counts),
        never_predicted=tuple(name for name, t in types.items() if t.support and name not in predicted_types),
    )


def answer_findings(examples: Sequence[QaExample], predictions: Sequence[str]) -> Findings:
    """Analyse answers, "" meaning none: kinds of mistake, and the answers farthest from the gold ones."""
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        kind, f1 = _answer_kind(example, predicted)
        counts[kind] += 1
        if f1 < 1:
            golds = " | ".join(dict.fromkeys(text for text, _ in example.answers)) or "(no answer)"
            text = f"{example.question} ↵ {_around_answer(example)}"
            wrong.append((f1, Mistake(example.id, text, golds, predicted or "(no answer)")))
    wrong.sort(key=lambda pair: pair[0])
    # Most mistakes are equally bad. Spread the choice, so that not all are of the file's first article.
    chosen = np.linspace(0, len(wrong) - 1, min(MISTAKES_SHOWN, len(wrong))).astype(int)
    wanted = {"an answer" if example.answers else "no answer" for example in examples}
    given = {"an answer" if predicted else "no answer" for predicted in predictions}
    return Findings(
        len(examples),
        len(wrong),
        tuple(wrong[i][1] for i in chosen),
        counts=dict(counts),
        never_predicted=tuple(sorted(wanted - given)),
    )


def _entity_mistakes(gold: set[tuple[str, int, int]], given: set[tuple[str, int, int]]) -> Counter[str]:
    """Count mistakes by kind; an entity that overlaps no other is missed or invented."""
    kinds = Counter[str]()
    for kind, first, last in given - gold:
        touched = [other for other in gold if other[1] < last and first < other[2]]
        if (first, last) in [(other[1], other[2]) for other in touched]:
            kinds["wrong type"] += 1
        elif any(other[0] == kind for other in touched):
            kinds["wrong ends"] += 1
        else:
            kinds["wrong type and ends" if touched else "invented"] += 1
    for _, first, last in gold - given:
        kinds["missed"] += not any(other[1] < last and first < other[2] for other in given)
    return kinds


def _entities(example: WordsExample, spans: set[tuple[str, int, int]]) -> str:
    ordered = sorted(spans, key=lambda span: span[1])
    return ", ".join(f"{kind}[{' '.join(example.words[a:b])}]" for kind, a, b in ordered) or "(none)"


def _answer_kind(example: QaExample, predicted: str) -> tuple[str, float]:
    """Return the kind of an answer and its F1."""
    if not example.answers:
        return ("rightly no answer", 1.0) if not predicted else ("answered where there is no answer", 0.0)
    if not predicted:
        return "no answer where there is one", 0.0
    scores = squad_em_f1([[text for text, _ in example.answers]], [predicted])
    if scores.exact == 1:
        return "right", 1.0
    return ("partly right", scores.f1) if scores.f1 > 0 else ("wrong", 0.0)


def _around_answer(example: QaExample) -> str:
    """Cut the context to the text around the first gold answer."""
    middle = example.answers[0][1] if example.answers else 0
    start = max(0, middle - EXCERPT // 2)
    return ("…" if start else "") + _excerpt(example.context[start:])


def _class_scores(both: int, gold: int, given: int) -> dict[str, float]:
    """Return one class's scores from its counts: right, in gold, in the predictions."""
    f1 = 2 * both / (gold + given) if gold + given else 0.0
    return {"precision": both / max(given, 1), "recall": both / max(gold, 1), "f1": f1, "support": gold}


def _worst(wrong: list[tuple[int, Mistake]]) -> tuple[Mistake, ...]:
    """Return the mistakes with the highest counts, equal ones in the order of the file."""
    return tuple(mistake for _, mistake in sorted(wrong, key=lambda pair: -pair[0])[:MISTAKES_SHOWN])


def _text_of(example: TextExample) -> str:
    texts = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    return " ↵ ".join(map(_excerpt, texts))


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def _joined(labels: set[str]) -> str:
    return ", ".join(sorted(labels)) or "(none)"
