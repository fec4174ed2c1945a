"""Exact match and F1 of answers, after the official evaluation scripts of SQuAD 1.1 and 2.0.

They differ from those scripts in one thing only: scores are shares of 1, not percent.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Exact match and F1, means over `total` questions."""

    exact: float
    f1: float
    total: int


@dataclass(frozen=True, slots=True)
class SquadV2Scores:
    """SQuAD 2.0: over all questions, over those with an answer, over those without (None if there are none)."""

    exact: float
    f1: float
    total: int
    has_answer: AnswerScores | None
    no_answer: AnswerScores | None

    def to_dict(self) -> dict[str, float]:
        """Return the scores flat, under the official script's names; shares of 1."""
        flat: dict[str, float] = {"exact": self.exact, "f1": self.f1, "total": self.total}
        for prefix, part in (("HasAns", self.has_answer), ("NoAns", self.no_answer)):
            if part is not None:
                flat |= {f"{prefix}_{name}": value for name, value in asdict(part).items()}
        return flat


_NAMES = {"exact_match": "exact", "f1": "f1", "has_answer_f1": "HasAns_f1", "no_answer_f1": "NoAns_f1"}
"""Our names of scores → those of the official script."""


@dataclass(frozen=True, slots=True)
class NullThreshold:
    """A bound on the null margin, for `TaskSpec.null_threshold`, and the F1 it gives on its own questions."""

    threshold: float
    f1: float


def normalize_answer(text: str) -> str:
    """Lower the case, then drop ASCII punctuation, English articles and surplus white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def squad_em_f1(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> AnswerScores:
    """Return SQuAD 1.1's scores: for each question the best over its gold answers.

    Raises ValueError if there are no questions, or one has no gold answer.
    """
    _check(golds, predictions)
    if empty := [i for i, answers in enumerate(golds) if not answers]:
        raise ValueError(f"question {empty[0]} has no gold answer; squad_v2 scores such data")
    exact, f1 = zip(*map(_best_v1, golds, predictions), strict=True)
    return AnswerScores(float(np.mean(exact)), float(np.mean(f1)), len(golds))


def squad_v2(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> SquadV2Scores:
    """Return SQuAD 2.0's scores. A question without gold is unanswerable; an empty prediction says so.

    `best_null_threshold` finds the threshold by which a prediction is emptied.
    """
    _check(golds, predictions)
    has_answer = np.array([bool(answers) for answers in golds])
    final = np.array([_best_v2(*pair) for pair in zip(golds, predictions, strict=True)], np.float64)  # (N, 2)
    overall = _mean(final)
    return SquadV2Scores(
        overall.exact,
        overall.f1,
        overall.total,
        _mean(final[has_answer]) if has_answer.any() else None,
        _mean(final[~has_answer]) if not has_answer.all() else None,
    )


def squad_scores(
    golds: Sequence[Sequence[str]], spans: Sequence[str], given: Sequence[str]
) -> dict[str, float]:
    """Return `exact_match`, `f1` and the like, by the rules of the data's own version.

    Where every question has an answer, SQuAD 1.1 scores the best span of each; otherwise 2.0 scores the answers given,
    "" for none.
    """
    if all(golds):
        forced = squad_em_f1(golds, spans)
        return {"exact_match": forced.exact, "f1": forced.f1}
    found = squad_v2(golds, given).to_dict()
    return {ours: found[theirs] for ours, theirs in _NAMES.items() if theirs in found}


def best_null_threshold(
    golds: Sequence[Sequence[str]], best_texts: Sequence[str], null_margins: ArrayLike
) -> NullThreshold:
    """Return the threshold that gives the highest F1 where a margin over it means "no answer".

    `best_texts` are the best answers without the null one; `null_margins` (N,) are null score minus best
    score as `bert.tasks.spans` gives them, inf where there is nothing to answer with. Questions of equal
    margin move together. The threshold lies halfway between two margins: rounding moves none across it.
    """
    _check(golds, best_texts)
    margins = _scores(null_margins, len(golds))
    silent = np.array([_best_v2(answers, "")[1] for answers in golds])
    f1 = np.array([_best_v2(*pair)[1] for pair in zip(golds, best_texts, strict=True)])
    order = np.argsort(margins, kind="stable")
    ordered = margins[order]
    totals = silent.sum() + np.concatenate([[0.0], np.cumsum((f1 - silent)[order])])  # [k]: k lowest answered
    splits = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])
    answered = int(np.argmax(np.where(splits, totals, -np.inf)))
    return NullThreshold(_between(ordered, answered), float(totals[answered] / len(golds)))


def _between(ordered: Floats, answered: int) -> float:
    """Return a number between the `answered` lowest of the ordered margins and the rest."""
    below, above = ordered[:answered], ordered[answered:]
    if len(above) == 0 or np.isinf(above[0]):
        return float(below[-1]) + 1.0 if len(below) else 0.0
    if len(below) == 0:
        return float(above[0]) - 1.0
    middle = float(below[-1] + above[0]) / 2.0
    return middle if middle < above[0] else float(below[-1])  # between neighbouring floats lies nothing


def _best_v1(golds: Sequence[str], prediction: str) -> tuple[float, float]:
    words = normalize_answer(prediction).split()
    gold_words = [normalize_answer(gold).split() for gold in golds]
    return float(words in gold_words), max(_overlap_f1(gold, words) for gold in gold_words)


def _best_v2(golds: Sequence[str], prediction: str) -> tuple[float, float]:
    """Return exact match and F1 by version 2: golds of articles alone do not count, and nothing against nothing is right."""
    words = normalize_answer(prediction).split()
    gold_words = [kept for gold in golds if (kept := normalize_answer(gold).split())] or [[]]
    f1 = max(_overlap_f1(gold, words) if gold and words else float(gold == words) for gold in gold_words)
    return float(words in gold_words), f1


def _overlap_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the F1 of two bags of words; 0 where they share none."""
    same = sum((Counter(gold) & Counter(predicted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def _mean(scores: Floats) -> AnswerScores:
    exact, f1 = scores.mean(axis=0)
    return AnswerScores(float(exact), float(f1), len(scores))


def _scores(values: ArrayLike, n: int) -> Floats:
    scores = np.asarray(values, np.float64)
    if scores.shape != (n,) or np.isnan(scores).any():
        raise ValueError(f"null margins have shape {scores.shape}; they must be ({n},) without nan")
    return scores


def _check(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> None:
    if len(golds) != len(predictions):
        raise ValueError(f"{len(golds)} questions but {len(predictions)} predictions")
    if not golds:
        raise ValueError("no questions to score")
