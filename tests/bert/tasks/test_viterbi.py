"""The best sequence of tags that BIO allows."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.tasks import ner
from bert.tasks.spec import TaskSpec
from bert.tasks.tags import TagScheme
from tests.support.reading import character_tokenizer, read

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
SCHEMES = {
    "BIO": BIO,
    "BIOES": ("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC"),
    "IO": ("O", "PER", "LOC"),
}
TOKENIZER = character_tokenizer()
SPEC = TaskSpec("ner", BIO, viterbi=True)


def keeps_the_rule(labels: tuple[str, ...], tags: tuple[int, ...]) -> bool:
    """Tell by the labels' text whether each I- or E- goes on with an entity of its type."""
    before = "O"
    for tag in tags:
        label = labels[tag]
        if label[:2] in ("I-", "E-") and (before[2:] != label[2:] or before[:2] in ("E-", "S-")):
            return False
        before = label
    return True


@pytest.mark.parametrize("scheme", SCHEMES)
@given(words=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_no_sequence_that_keeps_the_rule_is_better(scheme: str, words: int, seed: int) -> None:
    labels = SCHEMES[scheme]
    logits = np.random.default_rng(seed).normal(0, 2, (words, len(labels))).astype(np.float32)
    found = TagScheme.of(labels).best_sequence(logits)
    allowed = [
        tags for tags in itertools.product(range(len(labels)), repeat=words) if keeps_the_rule(labels, tags)
    ]
    sums = [logits[np.arange(words), tags].sum() for tags in allowed]
    assert tuple(found.tolist()) in allowed
    assert logits[np.arange(words), found].sum() == pytest.approx(max(sums), abs=1e-4)


def test_an_entity_that_begins_inside_is_mended_by_its_neighbours() -> None:
    text = "ab cd"
    logits = np.array([[0, 1.0, 0, 0.9, 0], [0, 0, 0, 0, 2.0]], np.float32)  # B-PER I-LOC, each alone
    plain = ner.decode(text, read(TOKENIZER, text), logits, TaskSpec("ner", BIO))
    assert [(e.text, e.label) for e in plain] == [("ab", "PER"), ("cd", "LOC")]
    (entity,) = ner.decode(text, read(TOKENIZER, text), logits, SPEC)
    assert (entity.text, entity.label) == ("ab cd", "LOC")
    rows = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert entity.score == pytest.approx((rows[0, 3] + rows[1, 4]) / 2, abs=1e-6)


def test_an_inside_tag_begins_entities_where_its_type_has_no_other() -> None:
    logits = np.array([[0, 2.0], [1.0, 0], [0, 2.0]], np.float32)
    assert TagScheme.of(("O", "I-PER")).best_sequence(logits).tolist() == [1, 0, 1]
