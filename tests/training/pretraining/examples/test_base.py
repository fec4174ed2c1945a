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


def vocabulary(pieces: list[str]) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(pieces)}


def test_special_and_unused_pieces_are_not_plain() -> None:
    ids = SpecialIds.from_vocabulary(vocabulary(PIECES))
    assert (ids.pad, ids.unk, ids.cls, ids.sep, ids.mask) == (0, 3, 4, 5, 6)
    assert [PIECES[i] for i in ids.plain] == ["[", "]", "<", "a", "##b"]


def test_a_tokenizers_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    assert SpecialIds.load(tmp_path).plain.tolist() == [8, 9, 10, 11, 12]


def test_a_vocabulary_without_mask_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"lacks \[MASK\]"):
        SpecialIds.from_vocabulary(vocabulary([p for p in PIECES if p != "[MASK]"]))


def test_a_vocabulary_without_plain_pieces_is_refused() -> None:
    with pytest.raises(CheckpointError, match="5 pieces are all special"):
        SpecialIds.from_vocabulary(vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
