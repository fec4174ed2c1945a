from pathlib import Path

import pytest

from bert.errors import CheckpointError
from bert.tokenizer import Tokenizer
from tests.support.tokenizers import KINDS, backend_of, write_tokenizer
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_gives_its_own(kind: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, kind)
    found, tokenizer = SpecialIds.load(tmp_path), Tokenizer.load(tmp_path)
    theirs = backend_of(kind)
    added = theirs.get_added_tokens_decoder()
    names = [added[each].content.strip("<>[]/") for each in (found.cls, found.sep, found.pad, found.mask)]
    markers = (["s", "s"], ["cls", "sep"], ["bos", "eos"])
    assert [name.lower() for name in names] in [[*both, "pad", "mask"] for both in markers]
    second = theirs.encode("a", "b")
    assert (found.separators, found.second_segment) == (
        sum(second.special_tokens_mask) - 2,
        second.type_ids[-1],
    )
    plain = set(found.plain.tolist())
    assert not plain & tokenizer.special_ids()
    seen = {number for ids in tokenizer.ids(["the film was warm (and 12% funny), <b>"]) for number in ids}
    assert seen - plain <= {tokenizer.unk_id}
    assert len(plain) > 0.9 * tokenizer.vocab_size


def test_a_vocabulary_without_mask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="needs a tokenizer with a mask"):
        read(tmp_path, [piece for piece in PIECES if piece != "[MASK]"])


def test_a_vocabulary_without_plain_pieces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="5 pieces are all special"):
        read(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
