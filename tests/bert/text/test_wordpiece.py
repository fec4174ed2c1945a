"""BERT's own tokenisation from a vocabulary file, and pieces that keep their marks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.errors import CheckpointError
from bert.text.offsets import extend_over_marks
from bert.text.wordpiece import from_vocabulary
from bert.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(folder: Path, *pieces: str, **config: Any) -> Path:
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *pieces]) + "\n", encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.pieces([text])[0].ids]


def test_the_id_is_the_line_and_the_longest_piece_wins(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "un", "unaff", "##aff", "##able", "##a"))
    assert tokenizer.pieces(["unaffable"])[0].ids.tolist() == [6, 8]
    assert tokenizer.vocab_size == 10


def test_a_vocabulary_with_capitals_is_cased(tmp_path: Path) -> None:
    assert pieces_of(Tokenizer.load(vocabulary(tmp_path, "Ada", "ada", "Zoë")), "Ada ada Zoë") == [
        "Ada",
        "ada",
        "Zoë",
    ]


def test_a_vocabulary_without_capitals_is_uncased(tmp_path: Path) -> None:
    assert pieces_of(Tokenizer.load(vocabulary(tmp_path, "ada", "zoe")), "Ada ada Zoë") == [
        "ada",
        "ada",
        "zoe",
    ]


def test_the_config_beside_it_decides_before_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "ada", do_lower_case=False))
    assert pieces_of(tokenizer, "Ada ada") == ["[UNK]", "ada"]


def test_the_argument_decides_before_the_config(tmp_path: Path) -> None:
    folder = vocabulary(tmp_path, "ada", do_lower_case=False)
    assert pieces_of(Tokenizer(from_vocabulary(folder / "vocab.txt", lowercase=True)), "Ada") == ["ada"]


def test_accents_are_kept_where_the_config_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(
        vocabulary(tmp_path, "schön", "schon", do_lower_case=True, strip_accents=False)
    )
    assert pieces_of(tokenizer, "Schön") == ["schön"]


def test_chinese_is_read_in_words_where_the_config_says_so(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "北京", "北", "京", tokenize_chinese_chars=False))
    assert pieces_of(tokenizer, "北京") == ["北京"]


def test_chinese_is_read_in_characters(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "北京", "北", "京", strip_accents=None))
    assert pieces_of(tokenizer, "在北京") == ["[UNK]", "北", "京"]


def test_ids_may_leave_numbers_out(tmp_path: Path) -> None:
    Tokenizer.load(vocabulary(tmp_path, "a", "b")).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["b"] = 20
    tokenizer = Tokenizer.parse(json.dumps(content).encode(), tmp_path)
    assert (tokenizer.vocab_size, tokenizer.highest_id()) == (7, 20)
    assert [number for number in range(30) if tokenizer.has_id(number)] == [0, 1, 2, 3, 4, 5, 20]


def test_special_pieces_in_a_text_are_plain_characters(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "[", "]", "sep"))
    assert pieces_of(tokenizer, "[SEP]") == ["[", "sep", "]"]


def test_line_separators_may_be_pieces(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary(tmp_path, "\u2028", "a"))
    assert tokenizer.token_to_id("a") == 6


def test_line_ends_of_windows_are_no_part_of_a_piece(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*SPECIAL, "a", ""]).encode())
    assert Tokenizer.load(tmp_path).token_to_id("a") == 5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[UNK]\n[CLS]\n[SEP]\na\n", r"no padding token: neither \[PAD\] nor <pad>"),
        (b"[PAD]\n[CLS]\n[SEP]\na\n", "cannot read a character that is not in its vocabulary"),
        (b"[PAD]\n[UNK]\na\nb\n", r"neither \[CLS\] and \[SEP\] nor <s> and </s>"),
        (b"a\nb\na\n", "has 3 lines but only 2 different pieces"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_broken_vocabulary_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_without_a_mask_is_read(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    assert Tokenizer.load(tmp_path).mask_id is None


@pytest.mark.parametrize("content", ["{", "[]", '{"do_lower_case": "yes"}'])
def test_a_broken_config_is_named(tmp_path: Path, content: str) -> None:
    vocabulary(tmp_path, "a")
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("cafe\u0301 x", [[0, 4], [6, 7]], [[0, 5], [6, 7]]),
        ("e\u0301\u0327", [[0, 1]], [[0, 3]]),
        ("a b", [[0, 1], [2, 3]], [[0, 1], [2, 3]]),
        ("e\u0301a", [[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2], [2, 3]]),  # the mark is a piece of its own
        ("\u0301a", [[1, 2]], [[1, 2]]),
        ("é", [], []),
    ],
)
def test_a_piece_ends_after_its_marks(text: str, before: list[list[int]], after: list[list[int]]) -> None:
    offsets = np.array(before, np.int32).reshape(-1, 2)
    extend_over_marks(text, offsets)
    assert offsets.tolist() == after
