"""Labelled data: read as its authors write it, scored as training scores it."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert.errors import DataError, ExportError
from bert.tokenizer import Tokenizer
from model_export.dev_data import read_questions, read_sentences, read_texts
from model_export.dev_score import labels_of, read_dev
from model_export.reference import Floats
from tests.model_export.checkpoints import SPECS, vocabulary


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    file.write_text("\n".join(vocabulary()), encoding="utf-8")
    return Tokenizer.load(file)


def write(folder: Path, text: str) -> Path:
    file = folder / "dev.txt"
    file.write_text(text, encoding="utf-8")
    return file


def one_hot(label: int, labels: int) -> Floats:
    return np.eye(labels, dtype=np.float32)[[label]]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("sentence\tlabel", 'a "fine" one\t1', ('a "fine" one', None, "1")),
        ("index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment", ("a", "b", "entailment")),
        ("index\tquestion\tsentence\tlabel", "0\twho\tshe\tentailment", ("who", "she", "entailment")),
        ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t5\t6\ta\tb", ("a", "b", "1")),
        ("index\tgenre\tsentence1\tsentence2\tscore", "0\tx\ta\tb\t4.5", ("a", "b", "4.5")),
    ],
)
def test_the_columns_of_glue(
    header: str, row: str, expected: tuple[str, str | None, str], tmp_path: Path
) -> None:
    (read,) = read_texts(write(tmp_path, f"{header}\r\n{row}\r\n"))
    assert (read.first, read.second, read.label) == expected


def test_a_broken_table_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dev.txt:3: has 1 columns instead of 2"):
        read_texts(write(tmp_path, "sentence\tlabel\na\t1\nb\n"))
    with pytest.raises(DataError, match=r"dev.txt:1: needs a column of sentence"):
        read_texts(write(tmp_path, "left\tright\na\t1\n"))
    with pytest.raises(DataError, match="holds no examples"):
        read_texts(write(tmp_path, "sentence\tlabel\n"))
    with pytest.raises(DataError, match="cannot be read"):
        read_texts(tmp_path / "nowhere")


def test_sentences_end_at_empty_lines_and_unknown_types_are_o(tmp_path: Path) -> None:
    file = write(tmp_path, "-DOCSTART- O\n\nAnna\tB-PER\nsang\tO\n\n\nJazz\tB-MISC\n")
    first, second = read_sentences(file, SPECS["ner"].labels)
    assert (first.words, first.tags) == (["Anna", "sang"], ["B-PER", "O"])
    assert (second.words, second.tags) == (["Jazz"], ["O"])


def test_questions_with_and_without_an_answer(tmp_path: Path) -> None:
    questions = [
        {"id": "1", "question": "who", "answers": [{"text": "she", "answer_start": 0}]},
        {"id": "2", "question": "when", "answers": []},
    ]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "she sang", "qas": questions}]}]}
    first, second = read_questions(write(tmp_path, json.dumps(squad)))
    assert (first.question, first.context, first.answers) == ("who", "she sang", ["she"])
    assert second.answers == []
    with pytest.raises(DataError, match="is not SQuAD json"):
        read_questions(write(tmp_path, '{"data": [{"paragraphs": [{}]}]}'))


def test_classification_is_scored_by_accuracy(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = read_dev(write(tmp_path, "text\tlabel\na\tgood\nb\t0\nc\t2\n"), SPECS["classification"], tokenizer)
    assert data.metric == "accuracy" and len(data.texts) == 3
    assert data.score([one_hot(label, 3) for label in (1, 0, 0)]) == pytest.approx(2 / 3)
    with pytest.raises(
        DataError, match=r"dev.txt:2: label 'great' is none of the model's: bad, good, neither"
    ):
        read_dev(write(tmp_path, "text\tlabel\na\tgreat\n"), SPECS["classification"], tokenizer)


def test_numbers_are_scored_by_correlation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "text\tscore\na\t1\nb\t2\nc\t3\n")
    data = read_dev(file, SPECS["regression"], tokenizer)
    assert data.score([np.array([[x]], np.float32) for x in (0.1, 0.2, 0.9)]) == pytest.approx(1)


def test_entities_are_scored_by_f1_over_the_given_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "Anna\tB-PER\nLindqvist\tI-PER\nin\tO\nOslo\tB-LOC\n")
    data = read_dev(file, SPECS["ner"], tokenizer)
    words = data.texts[0].positions
    right = np.concatenate([one_hot(label, 5) for label in (1, 2, 0, 3)])
    wrong = np.concatenate([one_hot(label, 5) for label in (1, 2, 0, 0)])
    assert len(words) == 4
    assert data.score([right]) == 1 and data.score([wrong]) == pytest.approx(2 / 3)


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
    labels = labels_of("classification", outputs)
    assert labels is not None and labels.tolist() == [1, 0]
    assert labels_of("similarity", outputs) is None
    assert labels_of("classification", [np.zeros((1, 1), np.float32)]) is None
