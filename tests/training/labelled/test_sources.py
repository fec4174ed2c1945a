"""Which reader a file gets, and which columns it reads."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert.data.read import guess_format
from bert.errors import ConfigError, DataError
from bert.settings import read_settings
from training.data_file import DataFile
from training.labelled.sources import (
    Source,
    check_pairs,
    find_labels,
    read_examples,
    read_sources,
    read_training,
)
from training.settings import FinetuneSettings

Write = Callable[[str, str], Path]
PAIRS = [("Warm.", "It is warm.", "yes"), ("Cold.", "It is warm.", "no")]
OBJECTS = [{"text": a, "text_pair": b, "label": label} for a, b, label in PAIRS]
TABLES = {
    "a.csv": "text,text_pair,label\n" + "".join(",".join(row) + "\n" for row in PAIRS),
    "a.TSV": "text\ttext_pair\tlabel\n" + "".join("\t".join(row) + "\n" for row in PAIRS),
    "a.txt": "text\ttext_pair\tlabel\n" + "".join("\t".join(row) + "\n" for row in PAIRS),
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in OBJECTS),
    "a.ndjson": "".join(json.dumps(row) + "\n" for row in OBJECTS),
    "a.json": json.dumps(OBJECTS),
}


def read(path: Path, task: str = "classification", **fields: Any) -> list[Any]:
    file = DataFile(path=path, **fields)
    return read_examples(file, FinetuneSettings(task=task, output_dir=Path("x")))


@pytest.mark.parametrize("name", TABLES)
def test_the_second_text_of_a_pair_is_read_without_being_named(write: Write, name: str) -> None:
    examples = read(write(name, TABLES[name]))
    assert [(e.text, e.text_pair, e.label) for e in examples] == PAIRS


def test_other_columns_can_be_named_and_the_pair_left_out(write: Write) -> None:
    path = write("a.csv", "review,text_pair,label\nWarm.,It is warm.,yes\n")
    assert read(path, columns={"text": "review"})[0].text_pair == "It is warm."
    assert read(path, columns={"text": "review", "text_pair": ""})[0].text_pair is None
    assert read(path, columns={"text": "text_pair"})[0].text_pair is None


def test_a_row_without_the_field_that_others_have_is_refused(write: Write) -> None:
    rows = [{"text": "Warm.", "label": "yes"}, *OBJECTS]
    with pytest.raises(DataError, match=r":1: has no field 'text_pair'"):
        read(write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))


def test_files_with_and_without_a_second_text_are_not_mixed(write: Write) -> None:
    pairs = Source("pairs", read(write("a.csv", TABLES["a.csv"])), 1.0)
    single = Source("single", read(write("b.csv", "text,label\nWarm.,yes\n")), 1.0)
    check_pairs([pairs, pairs])
    check_pairs([single])
    check_pairs([])
    with pytest.raises(ConfigError, match="pairs have two texts an example and single only one"):
        check_pairs([pairs, single])
    with pytest.raises(ConfigError, match="pairs have two texts an example and pairs only one"):
        check_pairs([pairs, replace(single, name="pairs"), pairs])


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("a.csv", "classification", "csv"),
        ("a.CSV", "classification", "csv"),
        ("a.tab", "similarity", "tsv"),
        ("a.txt", "classification", "tsv"),
        ("a.json", "classification", "jsonl"),
        ("a.NDJSON", "classification", "jsonl"),
        ("a.csv", "multiple_choice", "swag"),
        ("a.CSV", "multiple_choice", "swag"),
        ("a.jsonl", "multiple_choice", "codah"),
        ("a.conll", "ner", "conll"),
        ("plain", "ner", "conll"),
        ("a.JSON", "qa", "squad"),
    ],
)
def test_task_and_ending_say_the_format(write: Write, name: str, task: str, expected: str) -> None:
    assert guess_format(write(name, "x"), task) == expected


def test_a_plain_path_is_a_file(write: Write) -> None:
    path = write("tickets.csv", "label;text\nyes;Warm, I think.\nno;Cold.\n")
    arguments = ["--task", "classification", "--output-dir", "x", "--train", str(path)]
    settings = read_settings(FinetuneSettings, arguments)
    (source,) = read_sources(settings.train, settings)
    assert [(e.text, e.label) for e in source.examples] == [("Warm, I think.", "yes"), ("Cold.", "no")]
    (written,) = FinetuneSettings(task="ner", output_dir=Path("x"), train=[str(path)]).train  # as in YAML
    assert written == DataFile(path=path)


def test_columns_of_other_names_have_to_be_named_in_a_form_that_the_command_line_takes(write: Write) -> None:
    path = write("a.csv", "mood;text\nyes;Warm.\n")
    with pytest.raises(DataError, match=r"no column 'label'; its columns are 'mood', 'text'") as refused:
        read(path)
    (advice,) = re.findall(r"say which are read, (.*) in place of the path", str(refused.value))
    (value,) = shlex.split(advice.replace('"..."', '"mood"'))
    arguments = ["--task", "classification", "--output-dir", "x", "--train", value]
    settings = read_settings(FinetuneSettings, arguments)
    (source,) = read_sources(settings.train, settings)
    assert [(e.text, e.label) for e in source.examples] == [("Warm.", "yes")]
    assert (
        FinetuneSettings(task="ner", output_dir=Path("x"), train=[yaml.safe_load(value)]).train
        == settings.train
    )


def test_what_is_no_file_is_of_the_hub(tmp_path: Path) -> None:
    assert guess_format(Path("squad"), "qa") == "hub"
    assert guess_format(Path("allenai/c4.en"), "classification") == "hub"
    assert guess_format(tmp_path, "ner") == "hub"
    assert guess_format(Path("nowhere/train.csv"), "classification") == "csv"


def test_a_file_of_an_unknown_kind_is_refused_by_its_ending(write: Write) -> None:
    with pytest.raises(DataError, match=r"is a \.xlsx file; known are"):
        read(write("a.xlsx", "x"))


@pytest.mark.parametrize(
    ("task", "format", "column", "known"),
    [
        ("classification", "csv", "txt", "text, text_pair, label, id"),
        ("ner", "hub", "text", "words, tags"),
        ("multiple_choice", "hub", "endings", "prompt, choices, label, start"),
        ("qa", "hub", "question", "none"),
        ("ner", "conll", "words", "none"),
        ("classification", "glue", "text", "none"),
    ],
)
def test_columns_that_a_reader_does_not_know_are_refused(
    task: str, format: str, column: str, known: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"names \\['{column}'\\]; known for {task} from {format} are {known}$"
    ):
        read(Path("x"), task, format=format, columns={column: "a"})


def test_columns_of_choices_are_one_with_a_list_or_several(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    listed = {"q": "2 + 2 =", "options": ["3", "4"], "right": 1}
    spread = {"q": "2 + 2 =", "a": "3", "b": "4", "right": 1}
    for name, row, choices in (("listed", listed, "options"), ("spread", spread, "a, b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        columns = {"prompt": "q", "choices": choices, "label": "right"}
        (example,) = read(tmp_path / name, "multiple_choice", columns=columns)
        assert example.choices == ("3", "4")


def test_a_data_set_of_the_hub_has_its_second_texts_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text(TABLES["a.jsonl"], encoding="utf-8")
    assert [(e.text, e.text_pair, e.label) for e in read(tmp_path)] == PAIRS


def test_a_data_set_of_the_hub_has_its_triplets_and_nli_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    nli = [
        {"premise": "a", "hypothesis": x, "label": label}
        for x, label in (("b", "entailment"), ("c", "contradiction"))
    ]
    for name, rows in (("triplets", [{"anchor": "a", "positive": "b", "negative": "c"}]), ("nli", nli)):
        (tmp_path / name).mkdir()
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "train.jsonl").write_text(content, encoding="utf-8")
        settings = FinetuneSettings(task="similarity", output_dir=Path("x"))
        (example,) = read_examples(DataFile(path=tmp_path / name), settings)
        assert (example.text, example.text_pair, example.negatives) == ("a", "b", ("c",))


@pytest.mark.parametrize(
    ("task", "labels", "missing"),
    [
        ("ner", ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG"], "I-ORG"),
        ("ner", ["O", "PER", "LOC", "ORG"], "B-LOC, I-LOC, B-ORG"),
        ("classification", ["positive"], "negative"),
    ],
)
def test_labels_that_lack_one_of_the_data_are_refused(
    task: str, labels: list[str], missing: str, settings_for: Callable[..., FinetuneSettings]
) -> None:
    settings = settings_for(task, labels=labels)
    with pytest.raises(
        ConfigError, match=f"labels lacks {missing}.* and the training files need it: {labels[0]}"
    ):
        find_labels(settings, read_training(settings))
    assert find_labels(settings.model_copy(update={"train": []}), []) == tuple(labels)
