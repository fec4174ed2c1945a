from pathlib import Path

import pytest

from bert.errors import CheckpointError
from training.pretraining.examples.base import SpecialIds

PIECES = [
    "[PAD]",
    "[unused0]",
    "[unused99]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<S>",
    "[",
    "]",
    "<",
    "a",
    "##b",
]


def read(folder: Path, pieces: list[str]) -> SpecialIds:
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return SpecialIds.load(folder)


def test_special_and_unused_pieces_are_not_plain(tmp_path: Path) -> None:
    ids = read(tmp_path, PIECES)
    assert (ids.pad, ids.unk, ids.cls, ids.sep, ids.mask) == (0, 3, 4, 5, 6)
    assert [PIECES[i] for i in ids.plain] == ["[", "]", "<", "a", "##b"]


def test_a_vocabulary_without_mask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="needs a tokenizer with a mask"):
        read(tmp_path, [piece for piece in PIECES if piece != "[MASK]"])


def test_a_vocabulary_without_plain_pieces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="5 pieces are all special"):
        read(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
