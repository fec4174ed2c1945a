import logging

import pytest

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from bert.data.rows import Label
from bert.errors import DataError
from training.labelled.sources import Example, class_labels, shared_with_training, validate_training


def texts(*labels: Label) -> list[TextExample]:
    return [TextExample(f"text {n}", None, label, str(n)) for n, label in enumerate(labels)]


def test_labels_are_ordered_by_name_or_by_number() -> None:
    assert class_labels(texts("pos", "neg", "pos")) == ("neg", "pos")
    assert class_labels(texts("10", "9", "1")) == ("1", "9", "10")
    assert class_labels(texts(("b", "a"), (), ("c",))) == ("a", "b", "c")
    assert class_labels(texts(1.5, 2.0)) == ()


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        ([], "has no examples"),
        (texts("pos", "pos"), "has one label only, 'pos': there is nothing to learn"),
        (texts(1.0, 1.0), "has one label only"),
        (texts("pos", None), "has 1 examples without a label, of 2"),
        (texts((), ()), "has no label on any example"),
        ([WordsExample(("a",), ("O",), "1")], "has no entity"),
        ([QaExample("1", "Who?", "Nobody.", (), "")], "has no answerable question"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(examples: list[Example], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        validate_training("train.tsv", examples)


def test_what_can_be_learned_from_passes() -> None:
    validate_training("a", texts("pos", "neg"))
    validate_training("a", texts(1.0, 2.0))
    validate_training("a", texts(("x",), ()))
    validate_training("a", [WordsExample(("Ada",), ("B-PER",), "1")])
    validate_training("a", [ChoiceExample("A", ("b", "c"), 0, "1")])


def test_dev_examples_that_are_in_training_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert shared_with_training(texts("a", "b"), texts("b")) == 1
    assert "1 dev or test examples are also in the training data" in caplog.text
    words = WordsExample(("Ada",), ("O",), "1")
    assert shared_with_training([words], [words]) == 1
    question = QaExample("1", "Who?", "Ada.", (), "")
    assert shared_with_training([question], [QaExample("2", "Who?", "Bob.", (), "")]) == 0
