from pathlib import Path

import pytest

from bert.data.glue import glue_task, read_glue
from bert.errors import DataError
from tests.support.files import Write


def test_cola_has_no_header(write: Write) -> None:
    path = write("train.tsv", "gj04\t1\t\tThey drank the pub.\ngj04\t0\t*\tThey drank the pub dry of.\n")
    assert [(e.text, e.label) for e in read_glue(path)] == [
        ("They drank the pub.", "1"), ("They drank the pub dry of.", "0"),
    ]  # fmt: skip
    assert [e.label for e in read_glue(path, "CoLA")] == ["acceptable", "unacceptable"]


def test_mrpc_starts_with_a_byte_order_mark_and_has_lone_quotes(write: Write) -> None:
    path = write(
        "dev.tsv", '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said " no\tHe denied\n'
    )
    (example,) = read_glue(path, "MRPC")
    assert (example.text, example.text_pair, example.label) == ('He said " no', "He denied", "equivalent")


def test_labels_have_names_when_the_task_is_named(write: Write) -> None:
    path = write("dev.tsv", "sentence\tlabel\nlovely \t1\ndull\t0\n")
    assert [e.label for e in read_glue(path)] == ["1", "0"]
    assert [e.label for e in read_glue(path, "sst2")] == ["positive", "negative"]


def test_scores_of_sts_b_are_numbers(write: Write) -> None:
    path = write("dev.tsv", "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA\tB\t3.800\n")
    (example,) = read_glue(path)
    assert (example.text, example.text_pair, example.label, example.id) == ("A", "B", 3.8, "0")


def test_mnli_leaves_out_rows_without_agreement(write: Write) -> None:
    path = write("dev.tsv", "index\tsentence1\tsentence2\tgold_label\n0\tA\tB\tneutral\n1\tA\tC\t-\n")
    assert [e.id for e in read_glue(path, "MNLI")] == ["0"]


def test_a_test_file_has_no_labels(write: Write) -> None:
    (example,) = read_glue(write("test.tsv", "index\tsentence\n0\tlovely\n"), "SST-2")
    assert example.label is None


def test_rows_of_qqp_that_are_cut_off_are_left_out(write: Write) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write("train.tsv", header + "1\t2\t3\tWho?\tWhom?\t1\n4\t5\tHow\n")
    assert [e.label for e in read_glue(path, "QQP")] == ["duplicate"]


def test_a_row_that_is_cut_off_is_refused_elsewhere(write: Write) -> None:
    path = write("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n1\tA\tB\n")
    with pytest.raises(DataError, match=r"dev\.tsv:3: has 3 columns instead of 4"):
        read_glue(path, "RTE")


def test_an_unknown_label_is_refused_with_its_line(write: Write) -> None:
    path = write("dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tmaybe\n")
    with pytest.raises(DataError, match=":2: unknown label 'maybe'; known are entailment, not_entailment"):
        read_glue(path, "RTE")


def test_a_file_of_another_shape_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="is of no known GLUE task"):
        read_glue(write("a.tsv", "text\tmood\nx\ty\n"))
    with pytest.raises(DataError, match="has no column 'sentence1', 'sentence2'"):
        read_glue(write("b.tsv", "text\tmood\nx\ty\n"), "RTE")
    with pytest.raises(ValueError, match="unknown GLUE task 'sst-5'"):
        glue_task("sst-5")


@pytest.mark.parametrize(
    ("task", "file", "rows", "labels"),
    [
        ("SST-2", "train", 67349, {"negative", "positive"}),
        ("SST-2", "dev", 872, {"negative", "positive"}),
        ("MRPC", "train", 3667, {"equivalent", "not_equivalent"}),
        ("MRPC", "dev", 408, {"equivalent", "not_equivalent"}),
        ("CoLA", "train", 8551, {"acceptable", "unacceptable"}),
        ("CoLA", "dev", 1043, {"acceptable", "unacceptable"}),
        ("RTE", "train", 2490, {"entailment", "not_entailment"}),
        ("QNLI", "dev", 5463, {"entailment", "not_entailment"}),
    ],
)
def test_every_row_of_the_real_files_is_read(
    shared_data: Path, task: str, file: str, rows: int, labels: set[str]
) -> None:
    examples = read_glue(shared_data / "glue" / task / f"{file}.tsv", task)
    assert len(examples) == rows
    assert {example.label for example in examples} == labels


@pytest.mark.parametrize(("file", "rows"), [("train", 5749), ("dev", 1500)])
def test_every_score_of_sts_b_is_read(shared_data: Path, file: str, rows: int) -> None:
    scores = [e.label for e in read_glue(shared_data / "glue" / "STS-B" / f"{file}.tsv", "STS-B")]
    assert len(scores) == rows
    assert all(isinstance(score, float) and 0 <= score <= 5 for score in scores)
