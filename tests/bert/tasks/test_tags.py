"""Schemes of tags: detected from the labels alone, and decoded as seqeval's default does."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.tasks.tags import TagScheme

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = ("O", *(f"{role}-{kind}" for kind in ("PER", "LOC") for role in "BIES"))
BILOU = ("O", *(f"{role}-{kind}" for kind in ("PER", "LOC") for role in "BILU"))
BMES = ("O", *(f"{role}-{kind}" for kind in ("PER", "LOC") for role in "BMES"))
IOB1 = ("I-LOC", "I-PER", "B-LOC", "O")


def entities(tags: str, labels: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Return type, first and one past the last of each entity."""
    scheme, numbers = TagScheme.of(labels), np.array([labels.index(tag) for tag in tags.split()])
    first, last = scheme.bounds(numbers)
    kinds = [scheme.kind(tag) for tag in numbers[first].tolist()]
    return list(zip(kinds, first.tolist(), last.tolist(), strict=True))


def chunks(tags: list[str]) -> list[tuple[str, int, int]]:
    """Return what seqeval 1.2.2's `get_entities` does (its `start_of_chunk` and `end_of_chunk`), ends exclusive."""
    found, begin, before, kind_before = [], 0, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        role, kind = tag[0], tag[2:]
        ends = (
            before in "ES"
            or (before in "BI" and role in "BSO")
            or (before not in "O." and kind_before != kind)
        )
        starts = (
            role in "BS" or (before in "ESO" and role in "EI") or (role not in "O." and kind_before != kind)
        )
        if ends and before != "O":
            found.append((kind_before, begin, i))
        begin = i if starts else begin
        before, kind_before = role, kind
    return found


@pytest.mark.parametrize(
    ("tags", "labels", "expected"),
    [
        ("B-PER I-PER B-PER O I-LOC", BIO, [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5)]),
        ("I-LOC I-LOC B-LOC I-PER", IOB1, [("LOC", 0, 2), ("LOC", 2, 3), ("PER", 3, 4)]),
        ("S-PER S-PER B-LOC I-LOC E-LOC", BIOES, [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5)]),
        ("U-PER U-PER B-LOC I-LOC L-LOC", BILOU, [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 5)]),
        ("S-PER B-LOC M-LOC E-LOC M-LOC", BMES, [("PER", 0, 1), ("LOC", 1, 4), ("LOC", 4, 5)]),
        # Broken sequences: an end without a beginning, a beginning without an end, insides after an end.
        ("I-PER E-PER O E-LOC", BIOES, [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER S-LOC I-LOC", BIOES, [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3), ("LOC", 3, 4)]),
        ("B-PER L-PER L-PER O", BILOU, [("PER", 0, 2), ("PER", 2, 3)]),
        ("PER PER O LOC", ("PER", "LOC", "O"), [("PER", 0, 2), ("LOC", 3, 4)]),
        ("NOUN VERB VERB", ("NOUN", "VERB"), [("NOUN", 0, 1), ("VERB", 1, 3)]),
        ("b-per i-per o", ("o", "b-per", "i-per"), [("per", 0, 2)]),
        ("B-first_name I-first_name B-B-cell", ("O", "B-first_name", "I-first_name", "B-B-cell"),
         [("first_name", 0, 2), ("B-cell", 2, 3)]),
        ("E-mail E-mail S-Bahn", ("E-mail", "S-Bahn", "O"), [("E-mail", 0, 2), ("S-Bahn", 2, 3)]),
        ("B-E-mail I-E-mail", ("O", "B-E-mail", "I-E-mail"), [("E-mail", 0, 2)]),
    ],
)  # fmt: skip
def test_entities_of_each_scheme(
    tags: str, labels: tuple[str, ...], expected: list[tuple[str, int, int]]
) -> None:
    assert entities(tags, labels) == expected


@given(st.lists(st.sampled_from(BIOES), min_size=1, max_size=9))
def test_any_sequence_is_read_as_seqeval_reads_it(tags: list[str]) -> None:
    assert entities(" ".join(tags), BIOES) == chunks(tags)


def test_bilou_is_bioes_with_other_letters() -> None:
    renamed = str.maketrans("ES", "LU")
    for roles in product(("O", "B-PER", "I-PER", "E-PER", "S-PER"), repeat=4):
        other = " ".join(tag[:1].translate(renamed) + tag[1:] for tag in roles)
        assert entities(other, BILOU) == entities(" ".join(roles), BIOES)


@given(st.lists(st.sampled_from(BIOES), min_size=1, max_size=9))
def test_tags_as_bio_have_the_same_entities(tags: list[str]) -> None:
    numbers = np.array([BIOES.index(tag) for tag in tags])
    assert entities(" ".join(TagScheme.of(BIOES).bio(numbers)), BIO) == entities(" ".join(tags), BIOES)


@given(st.lists(st.sampled_from(BIO), min_size=1, max_size=9))
def test_bio_stays_what_it_is(tags: list[str]) -> None:
    assert TagScheme.of(BIO).bio(np.array([BIO.index(tag) for tag in tags])) == tags


def test_a_word_without_a_tag_is_outside() -> None:
    assert TagScheme.of(BIO).bio(np.array([1, -1, 2])) == ["B-PER", "O", "I-PER"]
    assert TagScheme.of(("NOUN",)).bio(np.array([-1, 0])) == ["O", "I-NOUN"]


def test_the_outside_may_be_anywhere_or_absent() -> None:
    assert TagScheme.of(IOB1).has_outside and TagScheme.of(BIO).has_outside
    assert not TagScheme.of(("NOUN", "VERB")).has_outside
    assert TagScheme.of(BIOES).types == ("LOC", "PER")
