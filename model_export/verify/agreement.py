"""The share of answers that an 8-bit graph changes, estimated from a sample of texts.

The share's upper bound at CONFIDENCE is judged (Clopper and Pearson, Biometrika 26, 1934).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert.encoding import Window
from bert.errors import ParityError
from bert.metrics.correlation import spearman
from bert.tasks import spans
from bert.tasks.open_ner.decode import Choosing, candidates, decode
from bert.tasks.open_ner.inputs import places
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Compared
from bert.tasks.vectors.similarity import normalize
from bert.tasks.vectors.sparse import weights_of
from bert.tasks.vectors.token_vectors import DOCUMENT, QUERY, maxsim
from model_export.reference import Floats
from model_export.verify.texts import EncodedText

Answer = tuple[int, int] | None

CONFIDENCE, EARLY_CONFIDENCE = 0.95, 0.992
"""Confidence asked of all texts, and of a part of them. Where a part reaches its own, no others are run. A graph that
changes just the allowed share passes one of all looks with a chance of 5.5%."""
MAX_QUERIES = 100
"""Queries for which documents are ranked."""
SAME_ORDER = 0.995
"""Smallest rank correlation with the checkpoint's scores, of similarity and regression."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Answers of a sample, and how many of them another graph changes."""

    what: str
    """labels (of NER one for each word), entities or answers."""
    count: int
    changed: int

    @property
    def at_most(self) -> float:
        """The share of all answers that is changed, at most, with CONFIDENCE."""
        return upper_bound(self.changed, self.count)

    def are_surely_few(self, allowed: float) -> bool:
        """Tell with EARLY_CONFIDENCE that no more than the share `allowed` is changed."""
        return upper_bound(self.changed, self.count, EARLY_CONFIDENCE) <= allowed

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        return {
            self.what: self.count,
            f"changed_{self.what}": self.changed,
            "changed_at_most": round(self.at_most, 5),
        }

    def check(self, allowed: float) -> None:
        """Raise ParityError where more than the share `allowed` may be changed."""
        if not self.at_most <= allowed:
            raise ParityError(
                f"{self.changed} of {self.count} {self.what} differ from the checkpoint's, so at most "
                f"{self.at_most:.1%} of all ({CONFIDENCE:.0%} sure), and {allowed:.1%} is allowed",
                "Nothing was written; export with --precision fp32, or allow more with --tolerance-labels.",
                self.to_dict(),
            )


def upper_bound(changed: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Return the largest share that leaves a chance of 1 - `confidence` to see so few changes in so many."""
    if changed >= count:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        if _chance_of_at_most(changed, count, share) > 1 - confidence:
            low = share
        else:
            high = share
    return high


def can_show(count: int, allowed: float) -> bool:
    """Tell whether so many answers, if none is changed, show that at most the share `allowed` is."""
    return upper_bound(0, count) <= allowed


def label_changes(spec: TaskSpec, before: Sequence[Floats], after: Sequence[Floats]) -> Changes | None:
    """Count the top labels that differ; None for a task without labels."""
    task = TASKS[spec.task]
    was, is_now = task.top_labels(before), task.top_labels(after)
    if was is None or is_now is None:
        return None
    return Changes("labels", len(was), int((was != is_now).sum()))


def entity_changes(
    spec: TaskSpec, texts: Sequence[EncodedText], before: Sequence[Floats], after: Sequence[Floats]
) -> Changes:
    """Count the entities of either graph, and those of them that only one finds."""
    was, is_now = (
        {
            (number, *entity)
            for number, (text, scores) in enumerate(zip(texts, outputs, strict=True))
            for entity in _entities(spec, text, scores)
        }
        for outputs in (before, after)
    )
    return Changes("entities", len(was | is_now), len(was ^ is_now))


def check_agreement(
    spec: TaskSpec,
    texts: Sequence[EncodedText],
    before: Sequence[Floats],
    after: Sequence[Floats],
    allowed: float,
) -> dict[str, Any]:
    """Compare answers (qa) or rankings (similarity, regression) on unlabelled texts; returns the measurements.

    `allowed` is the share of answers that may change. Labels and tags are compared elsewhere. Raises ParityError where
    too much differs, and for a task whose quality cannot be told without labelled data.
    """
    compared = TASKS[spec.task].compared(spec)
    if compared is Compared.NOTHING:
        raise ParityError(
            f"without a score on labelled data nothing tells how good a {spec.task} model stays"
        )
    if compared is Compared.ANSWERS:
        pairs = zip(answers_of(spec, texts, before), answers_of(spec, texts, after), strict=True)
        changes = Changes("answers", len(texts), sum(was != is_now for was, is_now in pairs))
        changes.check(allowed)
        return changes.to_dict()
    if compared is Compared.ORDER:
        return _same_order(spec, texts, before, after)
    return {}


def answers_of(spec: TaskSpec, texts: Sequence[EncodedText], outputs: Sequence[Floats]) -> list[Answer]:
    """Return each paragraph's answer as (start, end) in code points; None: the paragraph has none."""
    return [_answer(spec, text, scores) for text, scores in zip(texts, outputs, strict=True)]


def _answer(spec: TaskSpec, text: EncodedText, scores: Floats) -> Answer:
    encoding = text.encoding
    pieces = int((encoding.sequence_ids == 1).sum())
    window = Window(encoding, 0, pieces)
    # Only places are compared, so any text of the right length will do.
    found = spans.decode(" " * int(encoding.offsets.max()), [window], [scores], spec)
    return None if found.start is None or found.end is None else (found.start, found.end)


def _entities(spec: TaskSpec, text: EncodedText, scores: Floats) -> list[tuple[int, int, str]]:
    """Return first word, end and label of each entity that the service would answer where nothing else is asked."""
    assert spec.label_prompt is not None
    words = len(places(text.encoding)[1])
    labels = len(scores) // max(1, words)
    bounds = np.arange(words)[:, None] + np.arange(2)  # only places are compared, so a word is a letter
    window = Window(text.encoding, 0, words)
    names = [str(label) for label in range(labels)]
    found = decode(" " * words, bounds, names, [window], [candidates(scores)], spec.label_prompt, Choosing())
    return [(entity.start, entity.end, entity.label) for entity in found]


def _chance_of_at_most(changed: int, count: int, share: float) -> float:
    """Return the binomial distribution's P(X <= changed)."""
    log_odds, at_zero = math.log(share) - math.log1p(-share), count * math.log1p(-share)
    terms = (
        at_zero + k * log_odds + math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        for k in range(changed + 1)
    )
    return math.fsum(map(math.exp, terms))


def _same_order(
    spec: TaskSpec, texts: Sequence[EncodedText], before: Sequence[Floats], after: Sequence[Floats]
) -> dict[str, Any]:
    pairs = zip(_ranked(spec, texts, before).T, _ranked(spec, texts, after).T, strict=True)
    # Of token vectors each query has a ranking of its own, and a random one says little.
    summed = np.mean if spec.token_vectors is not None else np.min
    agreement = float(summed([spearman(was, is_now) for was, is_now in pairs]))  # nan if one is
    measured = {"rank_correlation": agreement}
    if not agreement >= SAME_ORDER:  # also for nan
        raise ParityError(
            f"the rank correlation with the checkpoint's scores is {agreement:.4f}, and {SAME_ORDER:g} is needed",
            measured=measured,
        )
    return measured


def _ranked(spec: TaskSpec, texts: Sequence[EncodedText], outputs: Sequence[Floats]) -> Floats:
    """Return what is ranked, a column for each ranking: the numbers (N, K), the likeness of every two texts, or of each
    query's MaxSim with every document, where the texts are both.
    """
    if spec.token_vectors is not None:
        queries, documents = (
            [rows for text, rows in zip(texts, outputs, strict=True) if text.encoding.sequence_ids[0] == side]
            for side in (QUERY, DOCUMENT)
        )
        return np.stack([maxsim(query, documents) for query in queries[:MAX_QUERIES]], axis=1)
    task, rows = TASKS[spec.task], np.concatenate(outputs)
    if task.takes_largest:
        rows = weights_of(rows, spec)
    elif not task.embeds:
        return rows
    elif spec.similarity == "cosine":
        rows = normalize(rows)
    likeness: Floats = rows @ rows.T
    return likeness[np.triu_indices(len(rows), k=1)][:, None]
