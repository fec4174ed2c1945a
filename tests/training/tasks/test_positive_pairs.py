"""Pairs without scores: which texts of a batch are no negatives, and how a held-out file is scored."""

import numpy as np

from bert.data.examples import TextExample
from training.tasks.positive_pairs import false_negatives, random_order, score_pairs


def pair(text: str, positive: str, *negatives: str) -> TextExample:
    return TextExample(text, positive, None, f"{text}-{positive}", negatives)


def test_equal_texts_of_a_batch_are_no_negatives() -> None:
    anchors, positives, negatives = list("aabc"), list("pqpa"), list("qzb")
    candidates = [*positives, *negatives]
    known = {anchor: {anchor} for anchor in anchors}
    for anchor, positive in zip(anchors, positives, strict=True):
        known[anchor].add(positive)
    expected = [
        [text in known[anchor] and column != row for column, text in enumerate(candidates)]
        for row, anchor in enumerate(anchors)
    ]
    keys = (np.array([ord(text) for text in texts]) for texts in (anchors, positives, candidates))
    assert false_negatives(*keys).tolist() == expected
    assert expected[0] == [False, True, True, True, True, False, False]


def test_pairs_are_scored_by_search_and_triplets_by_their_own_negatives() -> None:
    along = {"a": 0.0, "near a": 0.1, "far from a": 1.0, "b": 2.0, "near b": 2.2, "nearer b": 2.1}
    vectors = {text: np.array([np.cos(x), np.sin(x)], np.float32) for text, x in along.items()}
    examples = [pair("a", "near a", "far from a"), pair("b", "near b", "nearer b")]
    found = score_pairs(vectors, examples)
    assert found.scores == {"triplet_accuracy": 0.5, "recall_at_1": 0.5, "mrr": 0.75}
    assert found.findings is not None
    assert [(m.text, m.gold, m.predicted) for m in found.findings.mistakes] == [("b", "near b", "nearer b")]
    assert random_order(examples).scores == {
        "recall_at_1": 0.25, "mrr": (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, "triplet_accuracy": 0.5,
    }  # fmt: skip


def test_another_positive_of_the_same_text_is_no_mistake() -> None:
    along = {"a": 0.0, "near": 0.1, "farther": 0.2, "else": 2.0}
    vectors = {text: np.array([np.cos(x), np.sin(x)], np.float32) for text, x in along.items()}
    found = score_pairs(vectors, [pair("a", "near"), pair("a", "farther"), pair("else", "else")])
    assert found.scores == {"recall_at_1": 1.0, "mrr": 1.0}
