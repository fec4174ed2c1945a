from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bert.data.tagged_words import bio_labels, read_conll, to_bio
from bert.errors import DataError
from tests.support.files import Write

TAGS = st.lists(st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]), min_size=1, max_size=12)


def test_sentences_end_at_blank_lines_and_know_their_line(write: Write) -> None:
    first, second = read_conll(write("a.conll", "Ada\tB-PER\nLovelace\tI-PER\n\n\nLondon\tB-LOC\n"))
    assert first.words == ("Ada", "Lovelace")
    assert first.labels == ("B-PER", "I-PER")
    assert (first.id, second.id) == ("1", "5")


def test_conll_2003_has_four_columns_blanks_and_document_starts(write: Write) -> None:
    content = "-DOCSTART- -X- -X- O\r\n\r\nEU NNP B-NP I-ORG\r\nrejects VBZ B-VP O\r\n"
    (example,) = read_conll(write("a.txt", content))
    assert example.words == ("EU", "rejects")
    assert example.labels == ("B-ORG", "O")  # IOB1 there: I- starts the entity


def test_a_hash_with_a_tag_is_a_word_and_no_comment(write: Write) -> None:
    (example,) = read_conll(write("a.conll", "# O\n#tag O\n"))
    assert example.words == ("#", "#tag")


def test_a_word_may_hold_a_blank_where_tabs_part_the_columns(write: Write) -> None:
    (example,) = read_conll(write("a.conll", "New York\tB-LOC\n\u3000x\tO\n"))
    assert example.words == ("New York", "x")


def test_an_empty_word_outside_any_entity_is_left_out(write: Write) -> None:
    (example,) = read_conll(write("a.conll", "hello\tO\n\tO\n \tO\nAda\tB-PER\n"))
    assert example.words == ("hello", "Ada")


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]),
        ("BIOES", ["B-PER", "E-PER", "O", "S-LOC", "S-LOC", "S-PER"]),
        ("BILOU", ["B-PER", "L-PER", "O", "U-LOC", "U-LOC", "U-PER"]),
        ("BMES", ["B-PER", "E-PER", "O", "S-LOC", "B-LOC", "B-PER"]),
        ("BIO", ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "B-PER"]),
        ("BIO with an I- after O", ["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]),
    ],
)
def test_every_scheme_becomes_bio(scheme: str, tags: Sequence[str]) -> None:
    assert to_bio(tags) == ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "B-PER"]


def test_an_inside_after_an_end_is_a_new_entity() -> None:
    assert to_bio(["S-PER", "I-PER", "I-PER"]) == ["B-PER", "B-PER", "I-PER"]


@given(TAGS)
def test_entities_are_those_that_seqeval_reads_in_the_raw_tags(tags: list[str]) -> None:
    assert get_entities(to_bio(tags)) == get_entities(tags)


def test_types_are_renamed_and_left_out(write: Write) -> None:
    content = "Ada\tB-person\nruns\tO\nACME\tB-MISC\nCorp\tI-MISC\nOslo\tB-LOC\n"
    (example,) = read_conll(write("a.conll", content), {"person": "PER", "MISC": None})
    assert example.labels == ("B-PER", "O", "O", "O", "B-LOC")


def test_two_types_that_get_one_name_stay_two_entities() -> None:
    assert to_bio(["B-group", "I-corp"], {"group": "ORG", "corp": "ORG"}) == ["B-ORG", "B-ORG"]


def test_labels_of_a_model_are_o_first_then_types_by_name(write: Write) -> None:
    examples = read_conll(write("a.conll", "Ada\tB-PER\n\nOslo\tB-LOC\n"))
    assert bio_labels(examples) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def test_every_bad_line_is_told_with_its_number(write: Write) -> None:
    content = "Ada\tB-PER\nLovelace\nborn\tX\nin\tO\n\tB-LOC\nOslo\tB-city\n"
    with pytest.raises(DataError) as error:
        read_conll(write("a.conll", content), labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    assert "line 2: has 1 columns instead of a word and its tag" in str(error.value)
    assert "line 3: 'X' is not a tag like O, B-PER or I-PER" in str(error.value)
    assert "line 5: has the tag B-LOC but no word" in str(error.value)
    assert "line 6: unknown label 'B-city'; known are O, B-PER" in str(error.value)
    assert error.value.line == 2


def test_a_file_in_another_encoding_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.conll"
    path.write_bytes("Ada\tB-PER\nMünchen\tB-LOC\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin1\.conll:2: is not UTF-8 \(byte 0xfc\)"):
        read_conll(path)


def test_an_empty_or_missing_file_is_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        read_conll(write("a.conll", "\n\n"))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_conll(tmp_path / "none.conll")


@pytest.mark.parametrize(
    ("name", "sentences", "entities"),
    [("btc/train", 6338, 8779), ("wikigold/dev", 254, 571), ("wnut17/dev", 1009, 836)],
)
def test_the_real_files_are_read_whole(shared_data: Path, name: str, sentences: int, entities: int) -> None:
    examples = read_conll(shared_data / "ner" / f"{name}.conll")
    assert len(examples) == sentences
    assert sum(label[0] == "B" for example in examples for label in example.labels) == entities
