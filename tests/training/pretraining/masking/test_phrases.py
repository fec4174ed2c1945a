"""Phrases by longest match, and masked as one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert.errors import DataError
from bert.tokenizer import Tokenizer
from tests.support.masked_words import keys
from tests.support.pretraining_documents import special_ids
from tests.support.tokenizers import backend_of
from training.pretraining.examples.base import Example
from training.pretraining.masking.phrases import PhraseList, PhraseMasking, read_phrases

SPECIAL = special_ids(40)


def slow_find(phrases: list[list[int]], ids: list[int], borders: list[bool]) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(ids):
        matches = [
            phrase
            for phrase in phrases
            if len(phrase) > 1
            and ids[at : at + len(phrase)] == phrase
            and borders[at]
            and borders[at + len(phrase)]
        ]
        if matches:
            longest = max(map(len, matches))
            found.append((at, at + longest))
            at += longest
        else:
            at += 1
    return found


@given(
    phrases=st.lists(st.lists(st.integers(10, 13), min_size=1, max_size=4), max_size=6),
    text=st.lists(st.tuples(st.integers(10, 13), st.booleans()), max_size=25),
)
def test_phrases_are_found_by_longest_match(phrases: Any, text: Any) -> None:
    ids, borders = [token for token, _ in text], [*(border for _, border in text), True]
    found = PhraseList(phrases).find(np.array(ids, np.int32), np.array(borders))
    assert found == slow_find(phrases, ids, borders)


def example(ids: list[int], continues: list[bool]) -> Example:
    special = [True, *[False] * len(ids), True]
    return Example(
        np.array([SPECIAL.cls, *ids, SPECIAL.sep], np.int32),
        np.zeros(len(ids) + 2, np.int8),
        np.array([False, *continues, False]),
        np.array(special),
    )


def test_phrases_and_words_are_masked_whole() -> None:
    # 10 11 is a phrase, 12 ##13 a word, and 10 11 ##14 is not the phrase: it goes on.
    ids = [10, 11, 12, 13, 20, 10, 11, 14, 21, 22, 23, 24]
    continues = [False, False, False, True, False, False, False, True, False, False, False, False]
    masking = PhraseMasking(SPECIAL, 0.4, phrases=PhraseList([[10, 11], [23, 24, 25]]))
    units = [{1, 2}, {3, 4}, {5}, {6}, {7, 8}, {9}, {10}, {11}, {12}]
    seen = set[int]()
    for key in keys(60)[:, None]:
        chosen = set(masking.many([example(ids, continues)], key)[0].positions.tolist())
        for unit in units:
            assert not chosen & unit or unit <= chosen
        seen |= chosen
    assert seen == set(range(1, 13))


def vocabulary(folder: Path) -> Tokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "new", "york", "哈", "尔", "滨", "cit", "##y"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return Tokenizer.load(folder)


def test_a_list_is_a_file_with_a_phrase_a_line(tmp_path: Path) -> None:
    file = tmp_path / "phrases.txt"
    file.write_text("New York\n\n哈尔滨\nnew\nnew unknown\n  new york city \n", encoding="utf-8")
    phrases = read_phrases(file, vocabulary(tmp_path))
    assert len(phrases) == 3
    ids = np.array([5, 6, 10, 11, 7, 8, 9], np.int32)
    assert phrases.find(ids, np.ones(8, bool)) == [(0, 4), (4, 7)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_phrases_are_found_at_the_beginning_and_after_a_space(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "phrases.txt"
    file.write_text("Ada Lovelace\n", encoding="utf-8")
    tokenizer = Tokenizer(backend_of(kind))
    phrases = read_phrases(file, tokenizer)
    for text in ("Ada Lovelace met", "met Ada Lovelace"):
        ids = np.array(tokenizer.ids([text])[0], np.int32)
        (found,) = phrases.find(ids, np.ones(len(ids) + 1, bool))
        assert tokenizer.decode(ids[slice(*found)].tolist()).strip() == "Ada Lovelace"


def test_a_list_without_phrases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("new\nunknown words\n", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes(b"new y\xf6rk")
    for name, says in {
        "words": "none of its 2 lines",
        "latin": "cannot be read",
        "missing": "cannot be read",
    }.items():
        with pytest.raises(DataError, match=says):
            read_phrases(tmp_path / f"{name}.txt", vocabulary(tmp_path))
