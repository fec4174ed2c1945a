"""Mistakes of each task, against scikit-learn and by hand."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from training.report.error_analysis import class_findings, multi_label_findings, number_findings
from training.tasks.choice import choice_findings
from training.tasks.ner import entity_findings
from training.tasks.qa import answer_findings

LABELS = ("negative", "neutral", "positive")


def texts(*labels: Any) -> list[TextExample]:
    return [TextExample(f"text {n}", None, label, str(n)) for n, label in enumerate(labels)]


def test_classes_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold, given = (list(rng.choice(LABELS, 200)) for _ in range(2))
    found = class_findings(texts(*gold), given, LABELS)
    assert found.confusion is not None
    assert found.confusion.tolist() == confusion_matrix(gold, given, labels=list(LABELS)).tolist()
    expected = np.array(precision_recall_fscore_support(gold, given, labels=list(LABELS))).T
    ours = [list(found.by_class[label].values()) for label in LABELS]
    np.testing.assert_allclose(ours, expected)
    assert found.wrong == sum(a != b for a, b in zip(gold, given, strict=True))


def test_the_mistakes_of_which_the_model_was_most_sure_come_first() -> None:
    given = ["positive", "positive", "negative", "positive"]
    found = class_findings(
        texts("negative", "positive", "positive", "neutral"), given, LABELS, [0.6, 0.99, 0.7, 0.9]
    )
    assert [mistake.id for mistake in found.mistakes] == ["3", "2", "0"]
    assert found.mistakes[0].confidence == 0.9


def test_no_more_than_twenty_mistakes_are_shown_and_all_are_counted() -> None:
    found = class_findings(texts(*["negative"] * 50), ["positive"] * 50, LABELS)
    assert len(found.mistakes) == 20
    assert found.wrong == 50


def test_several_labels_are_scored_label_by_label() -> None:
    found = multi_label_findings(texts(("a", "b"), ("a",), ()), [("a",), ("b",), ()], ("a", "b"))
    assert found.by_class["a"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2}
    assert [m.id for m in found.mistakes] == ["1", "0"]
    assert found.mistakes[1].predicted == "a"


def test_numbers_farthest_off_in_rank_come_first_whatever_the_scale() -> None:
    found = number_findings(texts(0.0, 2.5, 5.0, 4.0), [0.9, 0.2, 0.8, 0.4])
    assert found.mistakes[0].id == "0"
    with pytest.raises(ValueError, match="3 predictions for 4 examples"):
        number_findings(texts(0.0, 2.5, 5.0, 4.0), [0.9, 0.2, 0.8])


def test_kinds_of_entity_mistakes_are_told_apart() -> None:
    words = ("Ada", "Lovelace", "saw", "London", "and", "Rome", "with", "Bob", "in", "May")
    gold = ("B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC", "O", "B-PER", "O", "O")
    given = ("B-PER", "O", "O", "B-ORG", "O", "B-LOC", "O", "O", "O", "B-PER")
    found = entity_findings([WordsExample(words, gold, "7")], [given])
    assert found.counts == {"wrong ends": 1, "wrong type": 1, "invented": 1, "missed": 1}
    assert found.by_class["LOC"] == {
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
        "support": 2,
    }
    assert found.mistakes[0].gold == "PER[Ada Lovelace], LOC[London], LOC[Rome], PER[Bob]"
    assert found.mistakes[0].predicted == "PER[Ada], ORG[London], LOC[Rome], PER[May]"


def test_kinds_of_answers_are_told_apart() -> None:
    def question(number: int, *answers: tuple[str, int]) -> QaExample:
        return QaExample(str(number), "Who?", "Ada Lovelace wrote it.", answers, "")

    ada = ("Ada Lovelace", 0)
    examples = [
        question(0, ada),
        question(1, ada),
        question(2, ada),
        question(3, ada),
        question(4),
        question(5),
    ]
    found = answer_findings(examples, ["ada lovelace!", "Lovelace", "it", "", "", "Ada"])
    assert found.counts == {
        "right": 1, "partly right": 1, "wrong": 1, "no answer where there is one": 1,
        "rightly no answer": 1, "answered where there is no answer": 1,
    }  # fmt: skip
    assert found.wrong == 4
    assert found.mistakes[-1].id == "1"  # partly right comes last
    assert found.mistakes[0].text == "Who? ↵ Ada Lovelace wrote it."


def test_classes_that_are_never_predicted_are_named() -> None:
    given = ["positive", "positive", "positive"]
    single = class_findings(texts("negative", "positive", "positive"), given, LABELS)
    assert single.never_predicted == ("negative",)  # no text is neutral, so that one is not missed
    several = multi_label_findings(texts(("a", "b"), ("c",)), [("a",), ("a",)], ("a", "b", "c", "d"))
    assert several.never_predicted == ("b", "c")
    words = WordsExample(("Ada", "in", "Rome"), ("B-PER", "O", "B-LOC"), "1")
    assert entity_findings([words], [("B-PER", "O", "O")]).never_predicted == ("LOC",)
    questions = [QaExample("1", "Who?", "Ada.", (("Ada", 0),), ""), QaExample("2", "Who?", "Ada.", (), "")]
    assert answer_findings(questions, ["Ada", "Ada"]).never_predicted == ("no answer",)
    assert answer_findings(questions, ["", ""]).never_predicted == ("an answer",)


def test_choices_show_the_ending_that_was_taken() -> None:
    found = choice_findings([ChoiceExample("He", ("sits.", "flies."), 0, "1")], [1])
    assert (found.mistakes[0].gold, found.mistakes[0].predicted) == ("sits.", "flies.")


def test_a_mistake_shows_how_sure_the_model_was() -> None:
    found = class_findings(texts("negative"), ["positive"], LABELS, [0.8])
    assert found.mistakes[0].confidence == 0.8
    assert multi_label_findings(texts(("a",)), [("a",)], ("a",)).wrong == 0
