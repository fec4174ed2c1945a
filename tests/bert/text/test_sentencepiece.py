"""`.model` files become the tokenizers that transformers' own converters make of them; damaged ones are refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import transformers.convert_slow_tokenizer  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.errors import CheckpointError
from bert.text import sentencepiece
from bert.text.sentencepiece import read_model
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import ODD_TEXTS, TEXTS
from tests.support.sentencepiece_files import CONTROL, NORMAL, UNKNOWN, charsmap, write_model
from tests.support.tokenizers import TRAINING_TEXTS, tokenizer_json

CHARSMAP = charsmap({"ﬁ": "fi", "Ａ": "A", "ｅ": "e", "①": "1", "\u3000": " ", "\u00a0": " "})
FILES = {
    "XLMRoberta": "sentencepiece.bpe.model",
    "Camembert": "sentencepiece.bpe.model",
    "Albert": "spiece.model",
    "DebertaV2": "spm.model",
}
BEGINNINGS = {
    "XLMRoberta": [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)],
    "Albert": [
        ("<pad>", 0.0, CONTROL),
        ("<unk>", 0.0, UNKNOWN),
        *((piece, 0.0, CONTROL) for piece in ("[CLS]", "[SEP]", "[MASK]")),
    ],
    "DebertaV2": [
        *((piece, 0.0, CONTROL) for piece in ("[PAD]", "[CLS]", "[SEP]")),
        ("[UNK]", 0.0, UNKNOWN),
    ],
}
UNKNOWN_IDS = {"Albert": 1, "DebertaV2": 3}


def pieces_of(kind: str, first: int) -> list[tuple[str, float, int]]:
    vocabulary = json.loads(tokenizer_json(kind))["model"]["vocab"][first:]
    return [*((piece, score, NORMAL) for piece, score in vocabulary), ("▁1990,", -3.0, NORMAL)]


def content(name: str, **options: Any) -> bytes:
    special = BEGINNINGS.get(name, BEGINNINGS["XLMRoberta"])
    normal = pieces_of("unigram_albert", 5) if name == "Albert" else pieces_of("unigram", 4)
    return write_model([*special, *normal], unk_id=UNKNOWN_IDS.get(name, 0), charsmap=CHARSMAP, **options)


def write(folder: Path, name: str, **config: Any) -> Path:
    (folder / FILES[name]).write_bytes(content(name))
    stated = {"tokenizer_class": f"{name}TokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


CASED = {"do_lower_case": False, "keep_accents": True}


BY_MARKS = {"do_lower_case": True, "split_by_punct": True}


@pytest.fixture(
    scope="module",
    params=[*((name, {}) for name in FILES), ("Albert", CASED), ("DebertaV2", BY_MARKS)],
)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Our tokenizer of a file, and the one of transformers' converter."""
    name, options = request.param
    folder = write(tmp_path_factory.mktemp(name), name, **options)
    ours = Tokenizer.load(folder)
    stated = {
        "keep_accents": False,
        "do_lower_case": name == "Albert",
        "split_by_punct": False,
        **options,
    }
    slow = SimpleNamespace(
        vocab_file=str(folder / FILES[name]),
        add_prefix_space=True,
        legacy=True,
        convert_tokens_to_ids=ours.token_to_id,
        **stated,
    )
    theirs = getattr(sys.modules["transformers.convert_slow_tokenizer"], f"{name}Converter")(slow).converted()
    return ours, theirs


def check(text: str, ours: Tokenizer, theirs: tokenizers.Tokenizer) -> None:
    text = " ".join(text.split())  # the converter gives extra blanks a piece, SentencePiece itself does not
    normal = theirs.normalizer.normalize_str(text)
    if normal.split(" ") != normal.split():  # the same of blanks that are left where a mark was taken off
        return
    (pieces,) = ours.pieces([text])
    same = pieces.ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert same
    expected, found = theirs.encode(text, "b"), ours.pair(pieces, ours.pieces(["b"])[0])
    assert found.ids.tolist() == expected.ids
    assert found.segment_ids.tolist() == expected.type_ids


def test_blanks_around_and_between_words_have_no_piece(both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = both
    # DeBERTa-v2 leaves tabs to the file's own normalisation, which this one has none of.
    between = "   " if "[PAD]" in theirs.get_vocab() else " \t "
    plain, blank, none = ours.pieces(["a film", f"  a{between}film ", " \n "])
    assert plain.ids.tolist() == blank.ids.tolist() and len(none) == 0


def test_texts_are_those_of_the_converter(both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    for text in (*ODD_TEXTS, *TRAINING_TEXTS, "in 1990, ``so'' they ﬁnd", "Ａ ① ｅ"):
        if "[" not in text and "<" not in text:
            check(text, *both)


@settings(max_examples=50, deadline=None)
@given(text=TEXTS.filter(lambda text: "[" not in text))
def test_any_text_is_that_of_the_converter(both: tuple[Tokenizer, tokenizers.Tokenizer], text: str) -> None:
    check(text, *both)


def test_the_vocabulary_is_that_of_the_converter(both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ours, theirs = both
    assert all(ours.token_to_id(piece) == number for piece, number in theirs.get_vocab().items())


IDS = {
    "XLMRoberta": (0, 2, 1, 3),
    "Camembert": (5, 6, 1, 3),
    "Albert": (2, 3, 0, 1),
    "DebertaV2": (1, 2, 0, 3),
}


@pytest.mark.parametrize(("name", "ids"), IDS.items())
def test_special_ids_are_the_familys(name: str, ids: tuple[int, ...], tmp_path: Path) -> None:
    found = Tokenizer.load(write(tmp_path, name))
    assert (found.cls_id, found.sep_id, found.pad_id, found.unk_id) == ids
    assert found.mask_id == (4 if name == "Albert" else found.vocab_size - 1)
    assert found.mask_takes_blanks == (name != "DebertaV2")


def test_the_model_type_decides_where_no_class_is_named(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content("XLMRoberta"))
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}', encoding="utf-8")
    assert Tokenizer.load(tmp_path).cls_id == 5
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="none can be made of its other files"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "XLMRobertaTokenizer"}', encoding="utf-8"
    )
    assert Tokenizer.load(tmp_path).cls_id == 0


def test_a_model_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(content("Albert", model_type=2))
    with pytest.raises(CheckpointError, match=r"of type 2; only Unigram \(1\) is read"):
        read_model(tmp_path / "a.model")


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"", "0 pieces"),
        (b"\x0a", "no number at byte 1"),
        (b"\x0a\xff\xff\xff\xff\xff\x01abc", "a field of"),
        (b"\xff" * 40, "no number at byte 0"),
        (b"\x08\x01", "a number where bytes are expected"),
        (b"\x0b\x01", "wire type 3"),
        (write_model([("a", float("nan"), NORMAL)]), "of score nan"),
        (write_model([("", 0.0, NORMAL)]), "a piece ''"),
        (write_model([("a", 0.0, NORMAL)], unk_id=7), "the unknown one should be 7"),
        (b"\x0a\x03\x0a\x01\xff", "utf-8"),
    ],
)
def test_a_damaged_file_is_refused(damaged: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(damaged)
    with pytest.raises(CheckpointError, match=reason):
        read_model(tmp_path / "a.model")


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.model").write_bytes(content("Albert"))
    monkeypatch.setattr(sentencepiece, "MAX_PIECES", 9)
    with pytest.raises(CheckpointError, match="more than 9 pieces"):
        read_model(tmp_path / "a.model")
    monkeypatch.setattr(sentencepiece, "MAX_BYTES", 9)
    with pytest.raises(CheckpointError, match="and at most 9 are read"):
        read_model(tmp_path / "a.model")


@pytest.mark.parametrize("broken", [b"abc", b"\xff" * 8, CHARSMAP[:100], CHARSMAP[:4] + b"\xff" * 4096])
def test_a_damaged_normalisation_is_refused_or_read(broken: bytes, tmp_path: Path) -> None:
    made = write_model([*BEGINNINGS["XLMRoberta"], *pieces_of("unigram", 4)], charsmap=broken)
    assert load_or_refuse(tmp_path, made)


Damage = Callable[[bytes], bytes]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a file with some of its bytes replaced, cut off or repeated."""
    out = bytearray(content("XLMRoberta"))
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(out) - 1))
        match draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                out[at] = draw(st.integers(0, 255))
            case "cut":
                del out[at : at + draw(st.integers(1, 64))]
            case "insert":
                out[at:at] = draw(st.binary(max_size=12))
    return bytes(out)


@settings(max_examples=300, deadline=None)
@given(made=damaged() | st.binary(max_size=200))
def test_no_damage_gives_anything_but_a_tokenizer_or_a_refusal(
    made: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert load_or_refuse(tmp_path_factory.mktemp("fuzz"), made)


def load_or_refuse(folder: Path, made: bytes) -> bool:
    (folder / "sentencepiece.bpe.model").write_bytes(made)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "XLMRobertaTokenizer"}', encoding="utf-8"
    )
    try:
        return len(Tokenizer.load(folder).pieces(["a text"])) == 1
    except CheckpointError as error:
        return "sentencepiece.bpe.model" in str(error) or "vocabulary" in str(error)
