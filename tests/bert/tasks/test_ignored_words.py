"""Words that belong to no entity."""

import time

import numpy as np
import pytest

from bert.errors import ConfigError
from bert.tasks import ner
from bert.tasks.aggregation import Aggregation, EntityOptions
from bert.tasks.spec import IGNORED_WORDS, TaskSpec
from bert.tasks.tags import ignored_words
from tests.support.reading import character_tokenizer, read

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TOKENIZER = character_tokenizer()
SPEC = TaskSpec("ner", BIO, viterbi=True)


@pytest.mark.parametrize("kinds", [(), IGNORED_WORDS])
@pytest.mark.parametrize("text", ["", " "])
def test_a_text_without_words_has_no_tags(text: str, kinds: tuple[str, ...]) -> None:
    assert ner.decode(text, read(TOKENIZER, text), np.zeros((0, 5), np.float32), SPEC, kinds) == []


def entities(text: str, *kinds: str, aggregation: Aggregation = Aggregation.FIRST) -> list[str]:
    """Return the entities where every word is one's beginning."""
    pieces = read(TOKENIZER, text)
    options = EntityOptions(aggregation)
    count = len(pieces) if options.by_piece else len(ner.word_heads(pieces))
    logits = np.tile(np.array([0, 5, 0, 0, 0], np.float32), (count, 1))
    return [e.text for e in options.decode(text, pieces, logits, TaskSpec("ner", BIO, left_out=kinds))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ab 😀", ["ab"]),
        ("ab😀", ["ab"]),
        ("😀", []),
        ("ab ™ cd", ["ab", "cd"]),
        ("👩‍🔬 ab", ["ab"]),
        ("ab €", ["ab"]),
        ("ke$ha", ["ke", "ha"]),
        ("ab & cd", ["ab", "&", "cd"]),
    ],
)
@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_symbols_belong_to_no_entity(text: str, found: list[str], aggregation: str) -> None:
    assert entities(text, "symbols", aggregation=Aggregation(aggregation)) == found
    assert len(entities(text)) >= len(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@ada met bo", ["met", "bo"]),
        ("@ ada @ bo met cy", ["met", "cy"]),
        ("RT @ ada : hi", ["RT", ":", "hi"]),
        ("ab (@cd)", ["ab", "(", ")"]),
        ("lunch @ ab", ["lunch", "@", "ab"]),
        ("ab@cd.ef", ["ab", "@", "cd", ".", "ef"]),
    ],
)
def test_handles_belong_to_no_entity(text: str, found: list[str]) -> None:
    assert entities(text, "handles") == found


@pytest.mark.parametrize("aggregation", ["first", "average", "max", "simple"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@", []),
        ("@ab met @ cd", ["ab", "met", "cd"]),
        ("ab, 7 _", ["ab", "7"]),
    ],
)
def test_no_entity_is_punctuation_alone(text: str, found: list[str], aggregation: str) -> None:
    way = Aggregation(aggregation)
    found = list("".join(found)) if way is Aggregation.SIMPLE else found  # a piece is a character
    assert entities(text, "punctuation", aggregation=way) == found
    assert len(entities(text, aggregation=way)) > len(found)


def test_an_entity_keeps_its_punctuation() -> None:
    text, goes_on = "J. & K.", [1, 2, 2, 2, 2]
    logits = 5 * np.eye(5, dtype=np.float32)[goes_on]
    found = ner.decode(text, read(TOKENIZER, text), logits, SPEC, ("punctuation",))
    assert [entity.text for entity in found] == [text]


def test_many_handles_take_no_time_of_their_square() -> None:
    words = 3 * np.arange(60_000)[:, None] + np.array([[0, 1], [1, 2]]).reshape(1, 4)
    bounds = words.reshape(-1, 2)
    began = time.process_time()
    assert len(ignored_words("@a " * 60_000, bounds, ("handles",))) == len(bounds)
    assert time.process_time() - began < 8  # comparing each handle with each word took 20 s


def test_without_a_label_for_outside_nothing_is_left_out() -> None:
    pieces, spec = read(TOKENIZER, "ab 😀"), TaskSpec("ner", ("PER", "LOC"), left_out=IGNORED_WORDS)
    found = ner.decode("ab 😀", pieces, np.array([[5, 0], [0, 5]], np.float32), spec)
    assert [e.text for e in found] == ["ab"]  # what is nothing but symbols has no text left


def test_words_are_found_by_their_kind() -> None:
    bounds = np.array([[0, 2], [3, 4]])
    assert ignored_words("ab 😀", bounds, ()).tolist() == []
    assert ignored_words("ab 😀", bounds, ("symbols",)).tolist() == [1]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"task": "ner", "labels": BIO, "left_out": ("emoji",)},
            "left_out names emoji; known are symbols, handles, punctuation",
        ),
        ({"task": "qa", "viterbi": True}, "are for ner, and task is 'qa'"),
        ({"task": "ner", "labels": BIO, "letter_shapes": 1}, "letter_shapes"),
    ],
)
def test_wrong_rules_are_named(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TaskSpec(**values)  # type: ignore[arg-type]
