"""Mistakes on questions."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert.data.examples import QaExample
from bert.metrics import squad_em_f1
from training.report.error_analysis.base import EXCERPT, MISTAKES_SHOWN, Findings, Mistake, excerpt


def answer_findings(examples: Sequence[QaExample], predictions: Sequence[str]) -> Findings:
    """Questions, "" meaning no answer: kinds of mistake, and the answers farthest from the gold ones."""
    counts, wrong = Counter[str](), []
    for example, predicted in zip(examples, predictions, strict=True):
        kind, f1 = _answer_kind(example, predicted)
        counts[kind] += 1
        if f1 < 1:
            golds = " | ".join(dict.fromkeys(text for text, _ in example.answers)) or "(no answer)"
            text = f"{example.question} ↵ {_around_answer(example)}"
            wrong.append((f1, Mistake(example.id, text, golds, predicted or "(no answer)")))
    wrong.sort(key=lambda pair: pair[0])
    worst = tuple(_mixed([mistake for _, mistake in wrong]))
    return Findings(
        len(examples),
        len(wrong),
        worst,
        counts=dict(counts),
        never_predicted=_never_predicted(examples, predictions),
    )


def _never_predicted(examples: Sequence[QaExample], predictions: Sequence[str]) -> tuple[str, ...]:
    wanted = {"an answer" if example.answers else "no answer" for example in examples}
    given = {"an answer" if predicted else "no answer" for predicted in predictions}
    return tuple(sorted(wanted - given))


def _answer_kind(example: QaExample, predicted: str) -> tuple[str, float]:
    if not example.answers:
        return ("rightly no answer", 1.0) if not predicted else ("answered where there is no answer", 0.0)
    if not predicted:
        return "no answer where there is one", 0.0
    scores = squad_em_f1([[text for text, _ in example.answers]], [predicted])
    if scores.exact == 1:
        return "right", 1.0
    return ("partly right", scores.f1) if scores.f1 > 0 else ("wrong", 0.0)


def _mixed(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Of mistakes that are equally bad take some from the whole file, not just its first article."""
    if len(mistakes) <= MISTAKES_SHOWN:
        return list(mistakes)
    steps = np.linspace(0, len(mistakes) - 1, MISTAKES_SHOWN).astype(int)
    return [mistakes[i] for i in steps]


def _around_answer(example: QaExample) -> str:
    """The context, cut to what stands around the first gold answer."""
    middle = example.answers[0][1] if example.answers else 0
    start = max(0, middle - EXCERPT // 2)
    return ("…" if start else "") + excerpt(example.context[start:])
