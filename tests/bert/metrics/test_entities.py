"""The entity scores against seqeval's default mode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from bert.metrics.entities import bio_spans, entity_f1

Tags = list[list[str]]
# Any order of tags: I- after O, after another type, at the start of a sentence; a type with a dash in it.
TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"])


@st.composite
def tagged(draw: st.DrawFn) -> tuple[Tags, Tags]:
    """Draw gold and predicted tags of the same sentences."""
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    gold = [draw(st.lists(TAGS, min_size=n, max_size=n)) for n in lengths]
    noise = [draw(st.lists(st.none() | TAGS, min_size=n, max_size=n)) for n in lengths]
    return gold, [[b or a for a, b in zip(x, y, strict=True)] for x, y in zip(gold, noise, strict=True)]


@given(st.lists(TAGS, max_size=20))
def test_spans_are_those_of_seqeval(tags: list[str]) -> None:
    expected = [(kind, first, last + 1) for kind, first, last in get_entities(tags)]
    assert bio_spans(tags) == expected


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@given(tagged())
def test_scores_over_all_entities_are_those_of_seqeval(sentences: tuple[Tags, Tags]) -> None:
    found = entity_f1(*sentences)
    assert found.precision == pytest.approx(precision_score(*sentences, zero_division=0))
    assert found.recall == pytest.approx(recall_score(*sentences, zero_division=0))
    assert found.f1 == pytest.approx(f1_score(*sentences, zero_division=0))


@given(tagged())
def test_scores_of_each_type_are_those_of_seqeval(sentences: tuple[Tags, Tags]) -> None:
    found = entity_f1(*sentences)
    if not found.types:
        return  # seqeval's report fails where there is no entity at all
    report = classification_report(*sentences, output_dict=True, zero_division=0)
    assert set(found.types) == set(report) - {"micro avg", "macro avg", "weighted avg"}
    for kind, scores in found.types.items():
        assert scores.f1 == pytest.approx(report[kind]["f1-score"])
        assert scores.precision == pytest.approx(report[kind]["precision"])
        assert scores.recall == pytest.approx(report[kind]["recall"])
        assert scores.support == report[kind]["support"]


def test_half_an_entity_counts_for_nothing() -> None:
    found = entity_f1([["B-PER", "I-PER", "O"]], [["B-PER", "O", "O"]])
    assert (found.precision, found.recall, found.f1, found.support) == (0.0, 0.0, 0.0, 1)


def test_two_entities_side_by_side_are_two() -> None:
    assert bio_spans(["B-LOC", "B-LOC", "I-LOC"]) == [("LOC", 0, 1), ("LOC", 1, 3)]


def test_no_entity_anywhere_scores_zero() -> None:
    assert entity_f1([["O"]], [["O"]]).f1 == 0.0


def test_sentences_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="sentence 1 has 2 gold tags but 1 predicted"):
        entity_f1([["O"], ["O", "O"]], [["O"], ["O"]])


def test_different_numbers_of_sentences_are_refused() -> None:
    with pytest.raises(ValueError, match="1 gold sentences but 2 predicted"):
        entity_f1([["O"]], [["O"], ["O"]])
