"""Texts with entities of any labels: GLiNER's json, spans, and tags, to words as the service splits them."""

import json
from pathlib import Path

import pytest

from bert.data.examples import EntitiesExample, LabelledFile
from bert.data.read import read_labelled
from bert.errors import DataError


def read(path: Path, *rows: object, **given: object) -> list[EntitiesExample]:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return read_labelled(LabelledFile(path, **given), "open_ner")  # type: ignore[arg-type]


def told(example: EntitiesExample) -> list[tuple[str, str]]:
    words = example.words
    return [(example.text[words[a][0] : words[b][1]], label) for a, b, label in example.entities]


def test_json_of_gliner_keeps_its_words_and_entities_that_overlap(tmp_path: Path) -> None:
    row = {
        "tokenized_text": ["The", "Bank", "of", "U.S.", "is", ""],
        "ner": [[1, 3, "company"], [3, 3, "country"], [1, 3, "bank"], [1, 3, "company"]],
        "ner_labels": ["company", "date"],
        "ner_negatives": ["city"],
    }
    found = read(tmp_path / "a.jsonl", row, {"tokenized_text": ["no", "one"], "ner": []})
    assert told(found[0]) == [("Bank of U.S.", "company"), ("U.S.", "country"), ("Bank of U.S.", "bank")]
    assert found[0].labels == ("company", "date") and found[0].negatives == ("city",)
    assert found[1].entities == () and found[1].labels is None


def test_a_list_of_rows_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"tokenized_text": ["Anna"], "ner": [[0, 0, "person"]]}], indent=1), "utf-8")
    assert told(read_labelled(LabelledFile(file), "open_ner")[0]) == [("Anna", "person")]


def test_spans_may_lie_within_one_another_and_are_laid_over_words(tmp_path: Path) -> None:
    text = "Ada's e-mail_x: the Bank of Rome"
    spans = [[20, 32, "bank"], [28, 32, "city"], [6, 14, "address"]]
    assert told(
        read(tmp_path / "a.jsonl", {"text": text, "spans": spans}, label_map={"city": "place"})[0]
    ) == [
        ("Bank of Rome", "bank"),
        ("Rome", "place"),
        ("e-mail_x", "address"),
    ]


@pytest.mark.parametrize("as_json", [True, False])
def test_tags_become_entities_of_the_words_that_the_service_reads(as_json: bool, tmp_path: Path) -> None:
    words, tags = ["I", "like", "Toys'R'Us", "and", "U.S."], ["O", "O", "B-ORG", "O", "B-LOC"]
    file = tmp_path / ("a.jsonl" if as_json else "a.conll")
    lines = [f"{word}\t{tag}" for word, tag in zip(words, tags, strict=True)]
    file.write_text(json.dumps({"tokens": words, "ner_tags": tags}) if as_json else "\n".join(lines), "utf-8")
    found = read_labelled(LabelledFile(file, label_map={"ORG": "company", "LOC": "country"}), "open_ner")
    assert told(found[0]) == [("Toys'R'Us", "company"), ("U.S.", "country")] and len(found[0].words) == 12


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokenized_text": ["a"], "ner": [[0, 1, "x"]]},
            r"line 2: the entity \[0, 1, 'x'\] is not within the 1 words",
        ),
        ({"tokenized_text": ["a"], "ner": [[0, "x"]]}, "is not .first word, last word, label."),
        ({"tokenized_text": ["a"], "ner": [[0, 0, " "]]}, "the label ' ' is not a name"),
        ({"tokenized_text": ["a"], "ner": [[0, 0, 3]]}, "the label 3 is not a name"),
        ({"tokenized_text": ["a"]}, "'ner' is None instead of a list"),
        ({"tokenized_text": "a b", "ner": []}, "'tokenized_text' is not a list of words"),
        (
            {"tokenized_text": ["a"], "ner": [], "ner_negatives": "x"},
            "'ner_negatives' is 'x' instead of a list",
        ),
        ({"tokenized_text": ["\ud800"], "ner": []}, "is not valid Unicode"),
        ({"text": "a b", "spans": [[0, 9, "x"]]}, "is not inside its text of 3 code points"),
        ({"text": "a b", "spans": [[0, 1, " "]]}, "has no single label"),
    ],
)
def test_a_bad_row_is_told_with_its_line(row: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"(?s)2.*{message.removeprefix('line 2: ')}"):
        read(tmp_path / "a.jsonl", {"tokenized_text": ["Anna"], "ner": [[0, 0, "person"]]}, row)
