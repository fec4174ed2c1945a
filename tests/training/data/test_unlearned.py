"""Words of tagged sentences that teach nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from bert.data.conll import bio_labels
from bert.data.examples import UNLEARNED, WordsExample
from bert.errors import ConfigError, DataError
from bert.nn.losses import IGNORED
from bert.tasks.spec import TaskSpec
from tests.support.reading import character_tokenizer
from training.data.datasets import read_training
from training.data.unlearned import unlearned
from training.settings import FinetuneSettings
from training.tasks.ner import NerFinetuning

TWEET = WordsExample(
    ("Today", "@", "ada", "met", "Bo", "at", "Acme", "Inc"),
    ("O", "O", "O", "O", "O", "O", "B-ORG", "I-ORG"),
    "1",
)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ((), ""),
        (("handles",), ""),
        (("capitals",), "Bo"),
        (("ORG",), "Acme Inc"),
        (("capitals", "ORG"), "Bo Acme Inc"),
    ],
)
def test_words_of_a_kind_are_unlearned(kinds: tuple[str, ...], words: str) -> None:
    (found,) = unlearned([TWEET], kinds)
    skipped = [word for word, label in zip(found.words, found.labels, strict=True) if label == UNLEARNED]
    assert " ".join(skipped) == words


def test_both_forms_of_a_handle_are_unlearned() -> None:
    tagged = WordsExample(("RT", "@", "bo", "hi", "@cy"), ("O", "B-PER", "B-PER", "O", "O"), "1")
    assert unlearned([tagged], ["handles"])[0].labels == ("O", UNLEARNED, UNLEARNED, "O", UNLEARNED)


def test_only_handles_tagged_o_are_unlearned() -> None:
    words = ("@", "bo", "met", "@", "cy", "and", "@dee", "@", "Oslo")
    tagged = WordsExample(words, ("B-PER", "B-PER", "O", "O", "O", "O", "O", "O", "B-LOC"), "1")
    (found,) = unlearned([tagged], ["untagged_handles"])
    assert [n for n, label in enumerate(found.labels) if label == UNLEARNED] == [3, 4, 6, 7]
    assert found.labels[8] == "B-LOC"


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unlearned of a\.conll names PER; known are handles, untagged_handles, capitals, ORG",
    ):
        unlearned([TWEET], ["PER"], "a.conll")


def test_what_is_unlearned_is_no_target_and_no_label() -> None:
    examples = unlearned([TWEET], ["capitals"])
    assert bio_labels(examples) == ("O", "B-ORG", "I-ORG")
    task = NerFinetuning(character_tokenizer(), TaskSpec("ner", bio_labels(examples), max_tokens=64))
    (feature,) = task.features(examples)
    learned = feature.target[feature.target != IGNORED]
    assert len(learned) == 7 and np.count_nonzero(learned) == 2


def test_a_file_says_what_of_it_is_unlearned(settings_for: Callable[..., FinetuneSettings]) -> None:
    settings = settings_for("ner")
    file = settings.train[0].model_copy(update={"unlearned": ["capitals"]})
    (source,) = read_training(settings.model_copy(update={"train": [file]}))
    assert any(UNLEARNED in example.labels for example in source.examples)
    with pytest.raises(ValueError, match="unlearned is for ner"):
        settings_for("qa", train=[{"path": "a.json", "unlearned": ["handles"]}])


def test_a_file_of_which_no_entity_is_learned_is_refused(
    settings_for: Callable[..., FinetuneSettings],
) -> None:
    file = {"path": settings_for("ner").train[0].path, "unlearned": ["PER", "LOC", "ORG"]}
    with pytest.raises(DataError, match="has no entity to learn: every label is O, or unlearned"):
        read_training(settings_for("ner", train=[file]))


def test_all_words_of_held_out_files_are_scored(settings_for: Callable[..., FinetuneSettings]) -> None:
    with pytest.raises(ValueError, match=r"unlearned is for training files, and b\.conll is scored on all"):
        settings_for("ner", test=[{"path": "b.conll", "unlearned": ["handles"]}])
