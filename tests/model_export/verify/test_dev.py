"""Labelled data: read as its authors write it, scored as training scores it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.data.examples import LabelledFile, TextExample
from bert.errors import CheckpointError, ConfigError, DataError, ExportError
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from model_export.reference import Floats
from model_export.verify.dev_score import (
    as_recorded,
    read_dev,
    read_sentences,
    read_texts,
    recorded_files,
)
from tests.support.checkpoints import SPECS, vocabulary
from tests.support.tokenizers import backend_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    file.write_text("\n".join(vocabulary()), encoding="utf-8")
    return Tokenizer.load(file)


def write(folder: Path, text: str) -> Path:
    file = folder / "dev.txt"
    file.write_text(text, encoding="utf-8")
    return file


def texts(path: Path, spec: TaskSpec) -> list[TextExample]:
    return read_texts(as_recorded(LabelledFile(path=path), spec), spec)


def one_hot(label: int, labels: int) -> Floats:
    return np.eye(labels, dtype=np.float32)[[label]]


@pytest.mark.parametrize(
    ("header", "row", "task", "expected"),
    [
        ("sentence\tlabel", 'a "fine" one\t1', "classification", ('a "fine" one', None, "good")),
        ("index\tsentence1\tsentence2\tlabel", "0\ta\tb\tyes", "pair", ("a", "b", "yes")),
        ("index\tquestion\tsentence\tlabel", "0\twho\tshe\t1", "pair", ("who", "she", "yes")),
        ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t5\t6\ta\tb", "pair", ("a", "b", "yes")),
        ("index\tgenre\tsentence1\tsentence2\tscore", "0\tx\ta\tb\t4.5", "similarity", ("a", "b", 4.5)),
    ],
)
def test_the_columns_of_glue(
    header: str, row: str, task: str, expected: tuple[str, str | None, str], tmp_path: Path
) -> None:
    (read,) = texts(write(tmp_path, f"{header}\r\n{row}\r\n"), SPECS[task])
    assert (read.text, read.text_pair, read.label) == expected


def test_numbers_of_glue_stand_for_the_labels_that_the_task_has(tmp_path: Path) -> None:
    """Sorted by name, as a model has them, the labels of MRPC are the other way round."""
    spec = TaskSpec("classification", ("equivalent", "not_equivalent"), pair=True, max_tokens=16)
    file = write(tmp_path, "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\ta\tb\n")
    assert [row.label for row in texts(file, spec)] == ["equivalent"]


def test_a_broken_table_is_refused_with_its_line(tmp_path: Path) -> None:
    spec = SPECS["classification"]
    with pytest.raises(DataError, match=r"dev.txt:3: has 1 columns instead of 2"):
        texts(write(tmp_path, "sentence\tlabel\na\t1\nb\n"), spec)
    with pytest.raises(DataError, match=r"dev.txt:1: has no column 'text', 'label'"):
        texts(write(tmp_path, "left\tright\na\t1\n"), spec)
    with pytest.raises(DataError, match="has no labels to score by"):
        unlabelled = write(tmp_path, "question\tsentence\na\tb\n")
        texts(unlabelled, replace(SPECS["pair"], data={"dev": [{"path": str(unlabelled), **QNLI}]}))
    with pytest.raises(DataError, match="cannot be read"):
        texts(tmp_path / "nowhere.tsv", spec)
    with pytest.raises(ConfigError, match="is not a file here, and only bert-finetune reads such data"):
        texts(tmp_path, spec)


QNLI = {"format": "glue", "glue_task": "QNLI"}


def test_a_file_is_read_as_the_checkpoints_own_were(tokenizer: Tokenizer, tmp_path: Path) -> None:
    own = {"path": "gone.csv", "format": "csv", "columns": {"text": "review", "label": "stars"}}
    spec = replace(SPECS["classification"], data={"train": [own], "dev": []})
    file = tmp_path / "new.tsv"
    file.write_text("stars\treview\ngood\ta\n", encoding="utf-8")
    assert len(read_dev(file, spec, tokenizer).texts) == 1
    asked = LabelledFile(path=file, columns={"text": "stars", "label": "review"})
    assert as_recorded(asked, spec).columns == asked.columns
    assert as_recorded(LabelledFile(path=Path("gone.csv")), spec).format == "csv"
    assert as_recorded(asked, SPECS["classification"]) == asked


def test_the_recorded_dev_files_of_a_checkpoint_are_read(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone.csv", tmp_path / "here.csv"
    data = {"dev": [{"path": str(gone)}, {"path": str(here), "name": "x"}], "train": []}
    spec = replace(SPECS["classification"], data=data)
    assert [file.path for file in recorded_files(spec, "dev")] == [gone, here]
    assert recorded_files(SPECS["classification"], "dev") == []
    with pytest.raises(CheckpointError, match=r"task\.json: data\.dev is not a list of files"):
        recorded_files(replace(spec, data={"dev": [{"paths": "a.csv"}]}), "dev")


def test_types_that_the_model_does_not_know_are_o(tmp_path: Path) -> None:
    file = write(tmp_path, "-DOCSTART- O\n\nAnna\tB-PER\nsang\tO\n\n\nJazz\tB-MISC\n")
    first, second = read_sentences(LabelledFile(path=file), SPECS["ner"])
    assert (first.words, first.labels) == (("Anna", "sang"), ("B-PER", "O"))
    assert (second.words, second.labels) == (("Jazz",), ("O",))
    # Some checkpoints of the hub have I- labels only, as CoNLL 2003 itself.
    first, _ = read_sentences(LabelledFile(path=file), replace(SPECS["ner"], labels=("O", "I-PER", "I-LOC")))
    assert first.labels[0] == "B-PER"
    unknown = write(tmp_path, "Anna\tB-person\n")
    with pytest.raises(DataError, match="has the types person, and the model knows only LOC, PER"):
        read_sentences(LabelledFile(path=unknown), SPECS["ner"])


def test_classification_is_scored_by_accuracy(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = read_dev(write(tmp_path, "text\tlabel\na\tgood\nb\t0\nc\t2\n"), SPECS["classification"], tokenizer)
    assert data.metric == "accuracy" and len(data.texts) == 3
    assert data.score([one_hot(label, 3) for label in (1, 0, 0)]) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match=r"dev.txt:2: unknown label 'great'; known are bad, good, neither"):
        read_dev(write(tmp_path, "text\tlabel\na\tgreat\n"), SPECS["classification"], tokenizer)


@pytest.mark.parametrize("label", ["3", "7", "-1", "1.0"])
def test_a_number_that_is_no_label_of_the_model_is_refused(
    label: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = write(tmp_path, f"text\tlabel\n\na\t0\nb\t{label}\n")
    with pytest.raises(DataError, match=rf"dev.txt:4: unknown label '{label}'; known are bad, good"):
        read_dev(file, SPECS["classification"], tokenizer)


def test_pairs_are_scored_as_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "sentence1\tsentence2\tlabel\na\tb\t1\n")
    with pytest.raises(DataError, match="has two texts a line, and the model is exported for one; --pair"):
        read_dev(file, SPECS["classification"], tokenizer)
    (text,) = read_dev(file, SPECS["pair"], tokenizer).texts
    assert text.encoding.segment_ids.tolist() == [0, 0, 0, 1, 1]
    single = write(tmp_path, "sentence\tlabel\na\t1\n")
    with pytest.raises(DataError, match="has one text a line, and the model reads pairs"):
        read_dev(single, SPECS["pair"], tokenizer)
    with pytest.raises(DataError, match="has the label '1'; similarity is learned from numbers"):
        read_dev(single, SPECS["similarity"], tokenizer)


def test_numbers_are_scored_by_correlation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "text\tscore\na\t1\nb\t2\nc\t3\n")
    data = read_dev(file, SPECS["regression"], tokenizer)
    assert data.score([np.array([[x]], np.float32) for x in (0.1, 0.2, 0.9)]) == pytest.approx(1)
    with pytest.raises(DataError, match=r"dev.txt:2: 'score' is 'nan', which is not finite"):
        read_dev(write(tmp_path, "text\tscore\na\tnan\n"), SPECS["regression"], tokenizer)
    several = replace(SPECS["regression"], labels=("clarity", "depth"))
    with pytest.raises(ExportError, match="a regression of several numbers is not scored at export"):
        read_dev(file, several, tokenizer)


def test_entities_are_scored_by_f1_over_the_given_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "Anna\tB-PER\nLindqvist\tI-PER\nin\tO\nOslo\tB-LOC\n")
    data = read_dev(file, SPECS["ner"], tokenizer)
    words = data.texts[0].positions
    right = np.concatenate([one_hot(label, 5) for label in (1, 2, 0, 3)])
    wrong = np.concatenate([one_hot(label, 5) for label in (1, 2, 0, 0)])
    assert len(words) == 4
    assert data.score([right]) == 1 and data.score([wrong]) == pytest.approx(2 / 3)


def test_chinese_of_a_character_a_line_is_scored_as_it_is_served(tmp_path: Path) -> None:
    unigram = Tokenizer(backend_of("unigram"))
    file = write(tmp_path, "北\tB-LOC\n京\tI-LOC\n的\tO\n李\tB-PER\n明\tI-PER\n")
    data = read_dev(file, SPECS["ner"], unigram)
    (served,) = unigram.pieces(["北京的李明"])
    assert data.texts[0].encoding.ids.tolist() == unigram.single(served).ids.tolist()
    assert data.score([np.concatenate([one_hot(label, 5) for label in (3, 4, 0, 1, 2)])]) == 1


def test_answers_are_scored_by_squads_f1(tokenizer: Tokenizer, tmp_path: Path) -> None:
    answer = [{"text": "bronze", "answer_start": 21}]
    paragraph = {
        "context": "The bell was cast in bronze in 1623.",
        "qas": [{"id": "1", "question": "Which metal?", "answers": answer}],
    }
    file = write(tmp_path, json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    data = read_dev(file, SPECS["qa"], tokenizer)
    encoding = data.texts[0].encoding
    scores = np.zeros((len(encoding), 2), np.float32)
    inside = (encoding.sequence_ids == 1) & (encoding.offsets[:, 0] >= 21) & (encoding.offsets[:, 1] <= 27)
    scores[np.flatnonzero(inside)[0], 0] = scores[np.flatnonzero(inside)[-1], 1] = 9
    assert data.score([scores]) == 1
    assert data.score([np.zeros_like(scores)]) < 1


def test_similarity_is_scored_by_correlation_of_cosines(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "sentence1\tsentence2\tscore\na\tb\t1\nc\td\t5\n")
    data = read_dev(file, SPECS["similarity"], tokenizer)
    vectors = [np.array([v], np.float32) for v in ([1, 0], [0, 1], [1, 0], [1, 0.1])]
    assert len(data.texts) == 4 and data.score(vectors) == pytest.approx(1)


def test_a_limit_takes_the_first_examples(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "text\tlabel\na\t0\nb\t1\nc\t2\n")
    assert len(read_dev(file, SPECS["classification"], tokenizer, limit=2).texts) == 2


@pytest.mark.parametrize("name", ["multiple_choice", "multi_label"])
def test_what_is_not_scored_says_so(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="leave --dev out"):
        read_dev(write(tmp_path, "text\tlabel\na\t0\n"), SPECS[name], tokenizer)


def test_only_tasks_with_labels_have_top_labels() -> None:
    outputs = [one_hot(1, 2), one_hot(0, 2)]
    labels = TASKS["classification"].top_labels(outputs)
    assert labels is not None and labels.tolist() == [1, 0]
    assert TASKS["similarity"].top_labels(outputs) is None
    assert TASKS["classification"].top_labels([np.zeros((1, 1), np.float32)]) is None
