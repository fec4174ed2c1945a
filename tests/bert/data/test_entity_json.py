"""Entities as annotation tools write them, each tool's form and what can be wrong with it."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.data.entity_json import read_entity_json
from bert.data.examples import LabelledFile, WordsExample
from bert.data.read import guess_format, read_labelled
from bert.errors import DataError
from bert.text.offsets import word_bounds
from bert.tokenizer import Tokenizer
from tests.support.files import Write

TEXT = "😀 Anna Lund met Siemens, Oslo."
WORDS = ("😀", "Anna", "Lund", "met", "Siemens", ",", "Oslo", ".")
LABELS = ("O", "B-PER", "I-PER", "O", "B-ORG", "O", "B-LOC", "O")
SPANS: list[tuple[int, int, str]] = [(2, 11, "PER"), (16, 23, "ORG"), (25, 29, "LOC")]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
IN_STUDIO = [
    # Label Studio runs in a browser, where the face is two characters.
    {"type": "labels", "value": {"start": s + 1, "end": e + 1, "text": TEXT[s:e], "labels": [label]}}
    for s, e, label in SPANS
]
TASK: dict[str, Any] = {
    "id": 7,
    "data": {"text": TEXT},
    "annotations": [{"was_cancelled": False, "result": IN_STUDIO}],
}
FORMS: dict[str, Any] = {
    "doccano": {"id": 1, "text": TEXT, "label": SPANS, "Comments": []},
    "doccano-before-1.5": {"text": TEXT, "labels": SPANS},
    "doccano-relations": {
        "text": TEXT,
        "entities": [{"id": 1, "label": kind, "start_offset": s, "end_offset": e} for s, e, kind in SPANS],
        "relations": [],
    },
    "spacy-ents": {"text": TEXT, "ents": OBJECTS},
    "spacy-entities": {"text": TEXT, "entities": SPANS},
    "spacy-pair": [TEXT, {"entities": SPANS}],
    "prodigy": {"text": TEXT, "tokens": [{"text": "Anna", "start": 2}], "spans": OBJECTS, "answer": "accept"},
    "label-studio": TASK,
    "label-studio-min": {"text": TEXT, "label": [part["value"] for part in IN_STUDIO]},
    "hugging-face": {"tokens": list(WORDS), "ner_tags": list(LABELS)},
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write_file


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "dump"),
    [
        ("a.jsonl", lambda row: lines(row, row)),
        ("a.json", lambda row: json.dumps([row, row])),
        ("a.json", lambda row: "\ufeff\n" + json.dumps([row, row], indent=1)),
        ("a.txt", lambda row: lines(row) + "\r\n" + lines(row)),
    ],
)
def test_each_tools_form_is_seen_in_the_content(
    form: str, name: str, dump: Callable[[Any], str], write: Write
) -> None:
    examples = read_labelled(LabelledFile(path=write(name, dump(FORMS[form]))), "ner")
    assert [(e.words, e.labels) for e in examples] == [(WORDS, LABELS)] * 2


def test_columns_are_columns_whatever_the_ending(write: Write) -> None:
    assert guess_format(write("a.jsonl", "[\tO\nAnna\tB-PER\n"), "ner") == "conll"
    assert guess_format(write("a.conll", lines(FORMS["doccano"])), "ner") == "jsonl"
    assert guess_format(write("a.json", json.dumps([TASK], indent=1)), "ner") == "jsonl"


def test_what_is_neither_is_told_which_formats_there_are(write: Write) -> None:
    table = "text,label\n" + "Anna sang,PER\n" * 300
    with pytest.raises(DataError, match=r"a.csv:1: .*; no line is a word with its tag; ner reads CoNLL"):
        read_labelled(LabelledFile(path=write("a.csv", table)), "ner")


def test_tags_that_are_numbers_want_names(write: Write) -> None:
    row = {"tokens": ["Anna", "sang"], "ner_tags": [1, 0]}
    path = write("a.jsonl", lines(row))
    with pytest.raises(DataError, match=r"'ner_tags' holds numbers: .* label_names: \[O, B-PER, I-PER"):
        read_labelled(LabelledFile(path=path), "ner")
    (example,) = read_labelled(LabelledFile(path=path, label_names=["O", "B-PER", "I-PER"]), "ner")
    assert example.labels == ("B-PER", "O")
    with pytest.raises(DataError, match="'ner_tags' holds 1, and label_names names 0 to 0"):
        read_labelled(LabelledFile(path=path, label_names=["O"]), "ner")


def test_fields_can_be_named_and_types_renamed(write: Write) -> None:
    path = write("a.jsonl", lines({"body": "Anna in Oslo", "marks": [[0, 4, "person"], [8, 12, "place"]]}))
    file = LabelledFile(path=path, columns={"text": "body", "spans": "marks"}, label_map={"place": None})
    (example,) = read_labelled(file, "ner")
    assert example.labels == ("B-person", "O", "O")
    (example,) = read_labelled(replace(file, label_map={"person": "PER"}), "ner")
    assert example.labels == ("B-PER", "O", "B-place")


def read(write: Write, *rows: Any, skip_empty: bool = False) -> list[WordsExample]:
    return read_entity_json(LabelledFile(path=write("a.jsonl", lines(*rows)), skip_empty=skip_empty))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "Anna", "label": [[0, 9, "PER"]]}, "PER 0-9 is not inside its text of 4 code points"),
        ({"text": "Anna", "label": [[-1, 2, "PER"]]}, "PER -1-2 is not inside"),
        ({"text": "Anna", "label": [[3, 3, "PER"]]}, "PER 3-3 is not inside"),
        ({"text": "Anna  sang", "label": [[4, 6, "PER"]]}, "PER 4-6 holds no word: '  '"),
        (
            {"text": "New York City", "label": [[0, 8, "LOC"], [4, 13, "ORG"]]},
            "LOC 0-8 and ORG 4-13 overlap, and a word has one label",
        ),
        ({"text": "Anna", "label": "PER"}, "the spans are 'PER' instead of a list"),
        ({"text": "Anna", "label": None}, "the spans are None instead of a list"),
        ({"text": "Anna", "label": [["0", 4, "PER"]]}, "has no whole numbers for start and end"),
        ({"text": "Anna", "label": [[0, 4]]}, "is not .start, end, label."),
        ({"text": "Anna", "label": [{"start": 0, "end": 4}]}, "0-4 has no single label: None"),
        (
            {"text": "Anna", "label": [{"start": 0, "end": 4, "labels": ["A", "B"]}]},
            "0-4 has no single label",
        ),
        (
            {"text": "Anna sang", "spans": [{"start": 1, "end": 5, "label": "PER", "text": "Anna"}]},
            "1-5 is 'nna ' in the text, and 'Anna' in the annotation",
        ),
        ({"text": "", "label": []}, "'text' is empty"),
        ({"text": 7, "label": []}, "'text' is 7, which is not text"),
        ({"label": []}, "has no field 'text'; its fields are 'label'"),
        (
            {"text": "Anna"},
            "has none of the fields 'spans', .* nor 'tokens' with tags; its fields are 'text'",
        ),
        ({"tokens": ["Anna"]}, "has 'tokens' and no list 'ner_tags'"),
        ({"tokens": ["Anna"], "ner_tags": []}, "has 1 words and 0 tags"),
        ({"tokens": ["Anna"], "ner_tags": ["PER"]}, "'PER' is not a tag like O, B-PER"),
        ({"tokens": [""], "ner_tags": ["B-PER"]}, "has the tag B-PER but no word"),
        ({"tokens": ["\ud800"], "ner_tags": ["O"]}, "is not valid Unicode"),
        ({"text": "Anna", "label": [[0, 4, "\ud800"]]}, "is not valid Unicode"),
        ({"data": {"text": "\ud800"}, "annotations": [{"result": []}]}, "is not valid Unicode"),
        ({"data": {"text": "Anna"}, "annotations": ["x"]}, "'annotations' is not a list of objects"),
        ({"data": {"text": "Anna"}, "annotations": [{}]}, "'result' of the first annotation is not a list"),
        ("Anna", "is 'Anna' instead of an object"),
    ],
)
def test_a_row_at_fault_is_told_with_its_line(row: Any, reason: str, write: Write) -> None:
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{reason}"):
        read(write, FORMS["doccano"], row)


def test_a_line_that_is_not_json_and_a_label_that_is_not_known(write: Write) -> None:
    path = write("a.jsonl", lines(FORMS["doccano"]) + '{"text": \n')
    with pytest.raises(DataError, match=r"(?s)line 2: is not json: .*line 1: unknown label 'B-PER'"):
        read_entity_json(LabelledFile(path=path), ("O", "B-ORG", "I-ORG", "B-LOC", "I-LOC"))
    with pytest.raises(DataError, match=r"a.json:3: is not json"):
        read_entity_json(LabelledFile(path=write("a.json", '[\n{"text": "a", "label": []},\n')))


@pytest.mark.parametrize("nesting", [900, 100_000])
def test_json_that_python_cannot_read_is_told_with_its_line(nesting: int, write: Write) -> None:
    whole = lines(FORMS["doccano"])
    number, deep = '{"text": ' + "9" * 5000 + "}\n", '{"text": ' + "[" * nesting + "]" * nesting + "}\n"
    for content, line in ((whole + number, 2), (number + whole, 1)):
        with pytest.raises(DataError, match=f"a.jsonl:{line}: has a whole number of more than 4,300 digits"):
            read_entity_json(LabelledFile(path=write("a.jsonl", content)))
    for content, line in ((whole + deep, 2), (deep + whole, 1)):
        with pytest.raises(DataError, match=f"a.jsonl:{line}: "):
            read_entity_json(LabelledFile(path=write("a.jsonl", content)))
    with pytest.raises(DataError, match=r"a.json: has a whole number"):
        read_entity_json(LabelledFile(path=write("a.json", f"[{number}]")))


def test_spans_are_moved_to_the_edges_of_words_and_counted(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"text": "Anna Lund left Oslo.", "label": [[0, 5, "PER"], [5, 9, "PER"], [16, 18, "LOC"]]}
    with caplog.at_level(logging.WARNING):
        (example,) = read(write, row)
    assert example.labels == ("B-PER", "B-PER", "O", "B-LOC", "O")
    assert (
        "1 of 3 spans begin or end inside a word, and were moved to the word's edges: 'sl' to 'Oslo'"
        in caplog.text
    )
    assert "1 spans had blanks at their ends" in caplog.text


def test_a_file_that_counts_something_else_than_code_points_is_refused(write: Write) -> None:
    shifted = {"text": "Anna met Oslo", "label": [[1, 5, "PER"], [10, 13, "LOC"]]}
    with pytest.raises(DataError, match=r"2 of 2 spans begin or end inside a word \('nna' to 'Anna'"):
        read(write, shifted)


def test_the_same_span_twice_is_one(write: Write) -> None:
    (example,) = read(write, {"text": "Anna", "label": [[0, 4, "PER"], [0, 4, "PER"]]})
    assert example.labels == ("B-PER",)


def test_what_was_not_annotated_is_left_out_and_counted(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = {**TASK, "annotations": [{"was_cancelled": True, "result": []}]}
    twice = {**TASK, "annotations": [TASK["annotations"][0], {"result": []}]}
    rejected = {**FORMS["prodigy"], "answer": "reject"}
    empty = {"text": " ", "label": []}
    with caplog.at_level(logging.WARNING):
        assert len(read(write, cancelled, twice, rejected, empty, skip_empty=True)) == 1
    for told in (
        "1 tasks without",
        "1 tasks have several",
        "1 rows that were rejected",
        "1 rows with an empty",
    ):
        assert told in caplog.text
    with pytest.raises(DataError, match="has no annotated texts"):
        read(write, cancelled)


TOKENIZER = Tokenizer.load(resolve_base(MINILM))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_words_are_read_as_the_text_is(text: str) -> None:
    """Words joined by blanks give the pieces that the served model sees in the text."""
    (bounds,) = word_bounds([text])
    joined = " ".join(text[start:end] for start, end in bounds)
    assert TOKENIZER.ids([joined]) == TOKENIZER.ids([text])
