import json
from dataclasses import replace
from pathlib import Path

import pytest

from bert.data.rows import TextColumns
from bert.data.tables import read_table
from bert.errors import DataError
from tests.support.files import Write

REVIEW = TextColumns("review", label="mood")


def test_csv_with_quotes_commas_and_line_ends_in_a_text(write: Write) -> None:
    path = write("a.csv", 'mood,review\r\ngood,"Nice, ""very"" nice\nindeed"\r\nbad,Awful\r\n')
    first, second = read_table(path, REVIEW)
    assert first.text == 'Nice, "very" nice\nindeed'
    assert (first.label, first.id) == ("good", "2")
    assert second.id == "4"  # the line in the file, not the row


def test_tsv_takes_quotes_as_letters(write: Write) -> None:
    path = write("a.tsv", 'mood\treview\ngood\t" Nice\nbad\t"Awful"\n')
    assert [example.text for example in read_table(path, REVIEW)] == ['" Nice', '"Awful"']


def test_jsonl_with_names_numbers_and_lists_as_labels(write: Write) -> None:
    path = write("a.jsonl", '{"review": "Nice", "mood": "good"}\n\n{"review": "Bad", "mood": 0}\n')
    assert [(e.label, e.id) for e in read_table(path, REVIEW)] == [("good", "1"), ("0", "3")]
    path = write("b.jsonl", '{"review": "Nice", "mood": ["good", "short"]}\n{"review": "Bad", "mood": []}\n')
    several = TextColumns("review", label="mood", problem_type="multi_label")
    assert [example.label for example in read_table(path, several)] == [("good", "short"), ()]


def test_a_json_list_of_objects(write: Write) -> None:
    path = write("a.json", json.dumps([{"review": "Nice", "mood": "good"}]))
    assert read_table(path, REVIEW)[0].text == "Nice"


def test_a_file_with_a_byte_order_mark(write: Write) -> None:
    assert read_table(write("a.csv", "\ufeffreview,mood\nNice,good\n"), REVIEW)[0].label == "good"


def test_a_text_may_hold_unicode_line_separators(write: Write) -> None:
    first, second = read_table(write("a.tsv", "review\tmood\nNice\u2028one\x85x\tgood\nBad\tbad\n"), REVIEW)
    assert first.text == "Nice\u2028one\x85x"
    assert second.id == "3"


def test_pairs_ids_and_names_for_labels(write: Write) -> None:
    columns = TextColumns("a", "b", "y", "n", label_names={"0": "no", "1": "yes"})
    (example,) = read_table(write("a.csv", "n,a,b,y\nx7,One,Two,1\n"), columns)
    assert (example.text_pair, example.label, example.id) == ("Two", "yes", "x7")


def test_a_number_is_the_label_of_a_regression(write: Write) -> None:
    (example,) = read_table(
        write("a.csv", "review,mood\nNice,4.5\n"),
        TextColumns("review", label="mood", problem_type="regression"),
    )
    assert example.label == 4.5


def test_several_labels_in_a_cell(write: Write) -> None:
    path = write("a.csv", 'review,mood\nNice,"good, short"\nBad,\n')
    several = TextColumns("review", label="mood", problem_type="multi_label")
    assert [example.label for example in read_table(path, several)] == [("good", "short"), ()]


def test_texts_without_labels(write: Write) -> None:
    (example,) = read_table(write("a.csv", "review\nNice\n"), TextColumns("review", label=None))
    assert example.label is None


def test_rows_with_a_label_to_skip_are_left_out(write: Write) -> None:
    path = write("a.csv", "review,mood\nNice,good\nOdd,-\n")
    assert len(read_table(path, TextColumns("review", label="mood", skip_labels=("-",)))) == 1


def test_every_bad_row_is_told_with_its_line(write: Write) -> None:
    path = write("a.csv", "id,review,mood\n1,Nice,good\n2,,bad\n3,x\n1,Nice,good\n5,Nice,odd\n6,Nice,\n")
    with pytest.raises(DataError) as error:
        read_table(path, TextColumns("review", label="mood", id="id", labels=("good", "bad")))
    told = str(error.value)
    assert "5 problems" in told
    assert "line 3: 'review' is empty" in told
    assert "line 4: has 2 columns instead of 3" in told
    assert "line 5: id '1' occurs twice" in told
    assert "line 6: unknown label 'odd'; known are good, bad" in told
    assert "line 7: 'mood' is empty" in told


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "text,mood\nx,good\n", "has no column 'review'; its columns are 'text', 'mood'"),
        ("a.csv", "review,review,mood\nx,y,good\n", "has two columns 'review'"),
        ("a.csv", 'review,mood\nx,good\n"y,good\nz,bad\n', r":3: is not csv: .*\(is a quote not closed\?\)"),
        ("a.csv", "review,mood\n", "has no rows"),
        ("a.jsonl", '{"review": "x", "mood": "good"}\n{"review"\n', r":2: is not json: .* at column 10"),
        ("a.jsonl", '{"review": "x"}\n', "has no field 'mood'"),
        ("a.jsonl", '["x"]\n', "instead of an object"),
        ("a.jsonl", '{"review": 7, "mood": "good"}\n', "'review' is 7, which is not text"),
        ("a.json", '{"review": "x"}', "must be a json list of objects"),
        (
            "a.json",
            '[{"review": "x", "mood": "good"}, 7, {"review": ""}]',
            "(?s)row 2: is '7'.*row 3: has no field",
        ),
        ("a.json", '[{"review": "x", "mood": ""}]', "a.json: row 1: 'mood' is empty"),
        ("a.jsonl", '\n{"review": "x\\ud800", "mood": "good"}\n', ":2: 'review' is not valid Unicode"),
        ("a.jsonl", '{"review": "x", "mood": "\\udc00"}\n', ":1: 'mood' is not valid Unicode"),
        (
            "a.json",
            '[{"review": "x\\udfff", "mood": "good"}]',
            "row 1: 'review' is not valid Unicode: it has half",
        ),
        ("a.xlsx", "x", r"is a .xlsx file; known are .csv, .tsv, .jsonl and .json, alone or before .gz, .xz"),
        ("a.gz", "x", "has no ending that names its format"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(write: Write, name: str, content: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_table(write(name, content), REVIEW)


@pytest.mark.parametrize(("name", "place"), [("a.jsonl", ":2"), ("a.json", "")])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "is json that is nested too deeply"),
        ("9" * 5000, "has a whole number of more than 4,300 digits"),
    ],
)
def test_json_that_python_cannot_read_is_refused(
    write: Write, name: str, place: str, value: str, reason: str
) -> None:
    rows = ['{"review": "x", "mood": "good"}', f'{{"review": "x", "mood": {value}}}']
    content = "\n".join(rows) if name == "a.jsonl" else f"[{', '.join(rows)}]"
    with pytest.raises(DataError, match=f"{name}{place}: {reason}"):
        read_table(write(name, content), REVIEW)


def test_a_whole_surrogate_pair_is_the_character_that_it_stands_for(write: Write) -> None:
    (example,) = read_table(write("a.jsonl", '{"review": "\\ud83d\\ude00", "mood": "good"}\n'), REVIEW)
    assert example.text == "😀"


def test_half_a_surrogate_pair_among_several_labels_is_refused(write: Write) -> None:
    path = write("a.jsonl", '{"review": "x", "mood": ["good", "\\ud800"]}\n')
    with pytest.raises(DataError, match="'mood' is not valid Unicode"):
        read_table(path, TextColumns("review", label="mood", problem_type="multi_label"))


@pytest.mark.parametrize("value", ["much", "nan", "inf", ""])
def test_a_score_that_is_no_number_is_refused(write: Write, value: str) -> None:
    columns = TextColumns("review", label="mood", problem_type="regression")
    with pytest.raises(DataError, match=r"not a number|not finite"):
        read_table(write("a.csv", f"review,mood\nNice,{value}\n"), columns)


def test_columns_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="problem_type is 'ranking'"):
        TextColumns(problem_type="ranking")


def test_snli_leaves_out_what_the_annotators_did_not_agree_on(shared_data: Path) -> None:
    columns = TextColumns("sentence1", "sentence2", "gold_label", "pairID", skip_labels=("-",))
    examples = read_table(shared_data / "snli" / "snli_1.0_dev.jsonl", columns)
    assert {example.label for example in examples} == {"entailment", "neutral", "contradiction"}
    assert len(examples) == 1273


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_separates_the_columns_is_seen_in_the_header(
    write: Write, separator: str, ending: str, mark: str
) -> None:
    others = "".join({",", ";", "|"} - {separator})  # in a text they separate nothing
    rows = [["id", " review", "mood"], ["1", f"Nice {others}", "good"], ["2", "Bad", "bad"]]
    content = "".join(separator.join(row) + "\r\n" for row in rows)
    path = write(f"a{ending}", mark + content)
    assert [e.label for e in read_table(path, REVIEW)] == ["good", "bad"]


def test_a_tsv_whose_header_is_quoted_has_quoted_fields(write: Write) -> None:
    (example,) = read_table(write("a.tsv", '"review"\t"mood"\n"Nice\there"\t"good"\n'), REVIEW)
    assert (example.text, example.label) == ("Nice\there", "good")


def test_the_columns_of_a_table_without_the_needed_ones_are_told_apart(write: Write) -> None:
    with pytest.raises(DataError, match="has no column 'review', 'mood'; its columns are 'a', 'b', 'c, d'"):
        read_table(write("a.csv", "a;b;c, d\n1;2;3\n"), REVIEW)


def test_rows_with_an_empty_cell_can_be_left_out(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write("a.csv", "review,mood\nNice,good\n ,bad\nAwful,\n")
    with pytest.raises(DataError, match=r"(?s)line 4: 'mood' is empty\n  `skip_empty: true`"):
        read_table(path, REVIEW)
    assert [e.id for e in read_table(path, replace(REVIEW, skip_empty=True))] == ["2"]
    assert "2 rows with an empty text or label were left out" in caplog.text
    with pytest.raises(DataError, match="has no rows without an empty cell"):
        read_table(write("b.csv", "review,mood\n,good\n"), replace(REVIEW, skip_empty=True))
    several = TextColumns("review", label="mood", problem_type="multi_label", skip_empty=True)
    assert [e.label for e in read_table(path, several)] == [("good",), ()]
