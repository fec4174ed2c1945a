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
from training.data.conll import bio_labels, read_conll

SHARED = Path(__file__).parents[3] / "shared" / "data"


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
    with pytest.raises(DataError, match=r"dev.txt:3: 'sentence' is empty"):
        read_texts(write(tmp_path, "sentence\tlabel\n\n \t1\n"))
    with pytest.raises(DataError, match="holds no examples"):
        read_texts(write(tmp_path, "sentence\tlabel\n"))
    with pytest.raises(DataError, match="cannot be read"):
        read_texts(tmp_path / "nowhere")


def test_sentences_end_at_empty_lines_and_unknown_types_are_o(tmp_path: Path) -> None:
    file = write(tmp_path, "-DOCSTART- O\n\nAnna\tB-PER\nsang\tO\n\n\nJazz\tB-MISC\n")
    first, second = read_sentences(file, SPECS["ner"].labels)
    assert (first.words, first.tags) == (["Anna", "sang"], ["B-PER", "O"])
    assert (second.words, second.tags) == (["Jazz"], ["O"])


def test_comments_are_no_words_and_every_scheme_of_tags_is_read(tmp_path: Path) -> None:
    text = "# sent_id = 7\nAnna\tB-PER\nMaria\tE-PER\nin\tO\nOslo\tS-LOC\nSan Jose\tS-LOC\na\x85b\tO\n#\tO\n"
    (sentence,) = read_sentences(write(tmp_path, text), SPECS["ner"].labels)
    assert sentence.words == ["Anna", "Maria", "in", "Oslo", "San Jose", "a\x85b", "#"]
    assert sentence.tags == ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "O", "O"]
    # Some checkpoints of the hub have I- labels only, as CoNLL 2003 itself.
    (sentence,) = read_sentences(tmp_path / "dev.txt", ("O", "I-PER", "I-LOC"))
    assert sentence.tags[0] == "B-PER"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Anna\tB-PER\nsang\n", r"dev.txt:2: has 1 columns instead of a word and its tag"),
        ("Anna B-PER\nsang well\n", r"dev.txt:2: 'well' is no tag like O, B-PER or I-PER"),
        ("Anna\tB-person\n", "has the types person, and the model knows only LOC, PER"),
        ("\n\n", "holds no examples"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        read_sentences(write(tmp_path, text), SPECS["ner"].labels)


def test_sentences_are_read_as_training_reads_them(tmp_path: Path) -> None:
    file = SHARED / "ner/btc/dev.conll"
    if not file.is_file():
        pytest.skip("no folder shared/data beside the checkout: this test reads real data")
    theirs = read_conll(file)
    ours = read_sentences(file, bio_labels(theirs))
    assert [(tuple(s.words), tuple(s.tags)) for s in ours] == [(e.words, e.labels) for e in theirs]


def test_questions_with_and_without_an_answer(tmp_path: Path) -> None:
    questions: list[dict[str, object]] = [
        {"id": "1", "question": "who", "answers": [{"text": "she", "answer_start": 0}]},
        {"id": "2", "question": "when", "answers": []},
    ]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "she sang", "qas": questions}]}]}
    first, second = read_questions(write(tmp_path, json.dumps(squad)))
    assert (first.question, first.context, first.answers) == ("who", "she sang", ["she"])
    assert second.answers == []
    questions[0]["is_impossible"] = True
    first, _ = read_questions(write(tmp_path, json.dumps(squad)))
    assert first.answers == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"data": [{"paragraphs": [{}]}]}', "is not SQuAD json: something has no '(qas|context)'"),
        ('{"data": 5}', "is not SQuAD json: lists and objects"),
        ('{"data": [\n', r"dev.txt:2: is not json"),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": 5, "answers": []}]}]}]}',
            "5 should be a text",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "\\ud800", "qas": [{"id": 7, "question": "a", "answers": []}]}]}]}',
            "question 7: half of a surrogate pair is not valid Unicode",
        ),
    ],
)
def test_questions_that_cannot_be_read_are_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why):
        read_questions(write(tmp_path, text))


def test_classification_is_scored_by_accuracy(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = read_dev(write(tmp_path, "text\tlabel\na\tgood\nb\t0\nc\t2\n"), SPECS["classification"], tokenizer)
    assert data.metric == "accuracy" and len(data.texts) == 3
    assert data.score([one_hot(label, 3) for label in (1, 0, 0)]) == pytest.approx(2 / 3)
    with pytest.raises(
        DataError, match=r"dev.txt:2: label 'great' is none of the model's: bad, good, neither"
    ):
        read_dev(write(tmp_path, "text\tlabel\na\tgreat\n"), SPECS["classification"], tokenizer)


@pytest.mark.parametrize("label", ["3", "7", "-1", "1.0"])
def test_a_number_that_is_no_label_of_the_model_is_refused(
    label: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    file = write(tmp_path, f"text\tlabel\n\na\t0\nb\t{label}\n")
    with pytest.raises(DataError, match=rf"dev.txt:4: label '{label}' is none of the model's: bad, good"):
        read_dev(file, SPECS["classification"], tokenizer)


def test_pairs_are_scored_as_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A checkpoint of the hub does not say that it reads pairs; its data does."""
    file = write(tmp_path, "sentence1\tsentence2\tlabel\na\tb\t1\n")
    (text,) = read_dev(file, SPECS["classification"], tokenizer).texts
    assert text.encoding.segment_ids.tolist() == [0, 0, 0, 1, 1]
    single = write(tmp_path, "sentence\tlabel\na\t1\n")
    with pytest.raises(DataError, match="has one text a line, and the model reads pairs"):
        read_dev(single, SPECS["pair"], tokenizer)
    with pytest.raises(DataError, match="has one text a line, and similarity needs two"):
        read_dev(single, SPECS["similarity"], tokenizer)


def test_numbers_are_scored_by_correlation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = write(tmp_path, "text\tscore\na\t1\nb\t2\nc\t3\n")
    data = read_dev(file, SPECS["regression"], tokenizer)
    assert data.score([np.array([[x]], np.float32) for x in (0.1, 0.2, 0.9)]) == pytest.approx(1)
    with pytest.raises(DataError, match=r"dev.txt:2: 'nan' is no number"):
        read_dev(write(tmp_path, "text\tscore\na\tnan\n"), SPECS["regression"], tokenizer)


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
