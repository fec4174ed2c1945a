"""Offsets give back the text: every character that a piece stands for, and its marks, none twice, none lost."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import example, given

from bert.encoding import Pieces
from bert.text.offsets import MarkEnds, offsets_of
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import LONG_TEXTS, ODD_TEXTS, TEXTS
from tests.support.reading import character_tokenizer
from tests.support.tokenizers import backend_of

MARKS = ("Mn", "Me")
UNCASED = character_tokenizer()


def uncased(text: str) -> str:
    """Return what an uncased BERT reads of a text, without its spaces: google-research/bert, the slow way."""
    letters = (c for c in unicodedata.normalize("NFD", cased(text)) if unicodedata.category(c) != "Mn")
    return "".join(c.lower() for c in letters)


def cased(text: str) -> str:
    """Return what a cased BERT reads of a text, without its spaces and control characters."""
    return "".join(c for c in text if not c.isspace() and unicodedata.category(c)[0] != "C" and c != "\ufffd")


def check(text: str, pieces: Pieces, tokenizer: Tokenizer, read: Callable[[str], str]) -> None:
    """Fail unless the offsets of a text's pieces give back the text."""
    starts, ends = pieces.offsets.T.tolist()
    assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends, strict=True))
    assert starts == sorted(starts) and ends == sorted(ends)
    covered = np.zeros(len(text) + 1, np.bool_)
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = True
    assert read("".join(c for c, there in zip(text, covered.tolist(), strict=False) if not there)) == ""
    for end, next_start in zip(ends, [*starts, len(text)][1:], strict=len(ends) > 0):
        assert end >= next_start or unicodedata.category(text[end]) not in MARKS
    check_words(text, pieces, tokenizer, read)


def check_words(text: str, pieces: Pieces, tokenizer: Tokenizer, read: Callable[[str], str]) -> None:
    """Fail unless the pieces of each word, put together, are the characters between its start and its end."""
    for word in np.unique(pieces.word_ids):
        rows = np.flatnonzero(pieces.word_ids == word)
        names = [tokenizer.id_to_token(i) for i in pieces.ids[rows]]
        span = read(text[pieces.offsets[rows[0], 0] : pieces.offsets[rows[-1], 1]])
        if "[UNK]" in names:
            assert len(names) == 1 and span
        else:
            assert names[0] + "".join(name.removeprefix("##") for name in names[1:]) == span


@given(text=TEXTS)
def test_offsets_give_back_any_text(text: str) -> None:
    check(text, UNCASED.pieces([text])[0], UNCASED, uncased)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
def test_offsets_give_back_odd_texts(text: str, packaged: Tokenizer) -> None:
    check(text, packaged.pieces([text])[0], packaged, uncased)


def test_offsets_give_back_20000_characters() -> None:
    for text, pieces in zip(LONG_TEXTS, UNCASED.pieces(LONG_TEXTS), strict=True):
        check(text, pieces, UNCASED, uncased)


def test_offsets_give_back_real_texts(real_texts: list[str], shared_data: Path) -> None:
    for name, read in (("uncased", uncased), ("cased", cased), ("chinese", uncased)):
        tokenizer = Tokenizer.load(shared_data / "vocab" / f"bert-base-{name}.txt")
        texts = [*real_texts[::2], *ODD_TEXTS]
        for text, pieces in zip(texts, tokenizer.pieces(texts), strict=True):
            check(text, pieces, tokenizer, read)


def test_offsets_are_those_of_transformers_and_the_marks_after(minilm: Path, packaged: Tokenizer) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)
    encoded = theirs(list(ODD_TEXTS), add_special_tokens=False, return_offsets_mapping=True)
    found = packaged.pieces(ODD_TEXTS)
    for text, pieces, expected in zip(ODD_TEXTS, found, encoded["offset_mapping"], strict=True):
        assert pieces.offsets[:, 0].tolist() == [start for start, _ in expected]
        for end, (_, their_end) in zip(pieces.offsets[:, 1].tolist(), expected, strict=True):
            assert all(unicodedata.category(c) in MARKS for c in text[their_end:end])


def test_an_accent_stays_with_its_letter() -> None:
    text = "Ame\u0301lie cafe\u0301"
    ends = UNCASED.pieces([text])[0].offsets[:, 1]
    assert text[:7] == "Ame\u0301lie" and 4 in ends and 3 not in ends
    assert ends[-1] == len(text)


def test_word_ids_count_words_and_punctuation() -> None:
    pieces = UNCASED.pieces(["Ada's  hat.\tOk"])[0]
    words = ["Ada's  hat.\tOk"[s:e] for s, e in zip(*word_spans(pieces), strict=True)]
    assert words == ["Ada", "'", "s", "hat", ".", "Ok"]


def word_spans(pieces: Pieces) -> tuple[list[int], list[int]]:
    rows = [np.flatnonzero(pieces.word_ids == word) for word in range(pieces.word_ids.max() + 1)]
    return [pieces.offsets[r[0], 0] for r in rows], [pieces.offsets[r[-1], 1] for r in rows]


def slow_after_marks(text: str, end: int) -> int:
    while end < len(text) and text[end] >= "\u0300" and unicodedata.category(text[end]) in MARKS:
        end += 1
    return end


@given(TEXTS)
@example("".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000)))))
@example("e\u0301" * 5_000)
def test_marks_end_where_a_walk_over_them_ends(text: str) -> None:
    places = np.arange(len(text) + 1)
    assert MarkEnds(text).after(places).tolist() == [
        slow_after_marks(text, place) for place in places.tolist()
    ]


@pytest.mark.parametrize("text", LONG_TEXTS)
def test_offsets_that_are_read_in_parts_are_the_librarys(text: str) -> None:
    for kind in ("wordpiece", "bpe", "unigram"):
        (encoded,) = backend_of(kind).encode_batch([text], add_special_tokens=False)
        assert offsets_of(encoded).tolist() == list(map(list, encoded.offsets))
