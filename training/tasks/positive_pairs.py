"""Texts that belong together, perhaps with texts that do not: false negatives of a batch, and scores of a held-out file."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.data.examples import TextExample
from bert.metrics.retrieval import Floats, retrieve
from training.report.error_analysis import MISTAKES_SHOWN, Baseline, Findings, Mistake, excerpt
from training.tasks.base import Evaluation

Keys = NDArray[np.int64]


def false_negatives(anchors: Keys, positives: Keys, candidates: Keys) -> NDArray[np.bool_]:
    """Return the candidates (C,) that must not count as wrong for an anchor (B,), besides its own positive: (B, C).

    Those are the anchor's own text, and every positive of the same anchor. The first B candidates belong to the anchors
    in their order. Equal keys are equal texts.
    """
    same_anchor = anchors[:, None] == anchors[None]  # (B, B)
    is_positive = positives[:, None] == candidates[None]  # (B, C)
    right = same_anchor.astype(np.float32) @ is_positive.astype(np.float32) > 0
    false = right | (anchors[:, None] == candidates[None])
    np.fill_diagonal(false, False)
    return np.asarray(false)


def texts_of(example: TextExample) -> tuple[str, ...]:
    """Return anchor, positive and negatives, or the two texts of a pair with a score."""
    return example.text, example.text_pair or "", *(example.negatives or ())


def score_pairs(vectors: dict[str, Floats], examples: Sequence[TextExample]) -> Evaluation:
    """Score pairs without scores by the unit vector of each text.

    Each anchor searches its positive among the positives and negatives of all examples. Other positives of the same
    anchor are left out of its search. `triplet_accuracy` is the share of anchors, of those that have negatives, whose
    positive is nearer than each of them.
    """
    texts = list(dict.fromkeys(text for example in examples for text in texts_of(example)[1:]))
    place = {text: number for number, text in enumerate(texts)}
    belonging = defaultdict[str, set[int]](set)
    for example in examples:
        belonging[example.text] |= {place[example.text_pair or ""], place.get(example.text, -1)} - {-1}
    right = [place[example.text_pair or ""] for example in examples]
    found = retrieve(
        np.stack([vectors[example.text] for example in examples]),
        np.stack([vectors[text] for text in texts]),
        right,
        [sorted(belonging[e.text] - {own}) for e, own in zip(examples, right, strict=True)],
    )
    scores = {"recall_at_1": found.recall_at_1, "mrr": found.mrr}
    if any(example.negatives for example in examples):
        scores = {"triplet_accuracy": _triplet_accuracy(vectors, examples), **scores}
    return Evaluation(
        scores, retrieval_findings(examples, [texts[i] for i in found.nearest], found.ranks == 1)
    )


def _triplet_accuracy(vectors: dict[str, Floats], examples: Sequence[TextExample]) -> float:
    return float(
        np.mean(
            [
                vectors[e.text] @ vectors[e.text_pair or ""]
                > max(vectors[e.text] @ vectors[n] for n in e.negatives)
                for e in examples
                if e.negatives
            ]
        )
    )


def random_order(examples: Sequence[TextExample]) -> Baseline:
    """Score a random order of the texts."""
    places = 1 + np.arange(len({text for example in examples for text in texts_of(example)[1:]}))
    scores = {"recall_at_1": 1 / len(places), "mrr": float(np.mean(1 / places))}
    chances = [1 / (1 + len(example.negatives)) for example in examples if example.negatives]
    return Baseline(
        "a random order", scores | ({"triplet_accuracy": float(np.mean(chances))} if chances else {})
    )


def retrieval_findings(
    examples: Sequence[TextExample], nearest: Sequence[str], is_right: NDArray[np.bool_]
) -> Findings:
    """Analyse a search: texts to which another one than their own is the nearest."""
    wrong = [
        Mistake(e.id, excerpt(e.text), excerpt(e.text_pair or ""), excerpt(found))
        for e, found, right in zip(examples, nearest, is_right, strict=True)
        if not right
    ]
    return Findings(len(examples), len(wrong), tuple(wrong[:MISTAKES_SHOWN]))
