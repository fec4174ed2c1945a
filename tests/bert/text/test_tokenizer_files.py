"""Tokenizers made of vocabularies and merges, and what transformers makes of what we save."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from tokenizers import pre_tokenizers

from bert.errors import CheckpointError
from bert.text.wordpiece import MPNET_PIECES, SPECIAL_PIECES
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import ODD_TEXTS, TEXTS
from tests.support.tokenizers import KINDS, TRAINING_TEXTS, backend_of, write_tokenizer

MASK_FLAGS = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}


def write_merges(folder: Path, **config: Any) -> Path:
    """Write the small BPE as `vocab.json` and `merges.txt`; its mask is an added piece of id 500."""
    backend_of("bpe").model.save(str(folder))
    stated = {"tokenizer_class": "RobertaTokenizer", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens.json": {"<mask>": 500}},
        {
            "special_tokens_map.json": {"mask_token": MASK_FLAGS, "bos_token": "<s>"},
            "added_tokens.json": {"<mask>": 500},
        },
        {
            "tokenizer_config.json": {
                "tokenizer_class": "RobertaTokenizerFast",
                "added_tokens_decoder": {"500": MASK_FLAGS},
            }
        },
    ],
)
def test_merges_make_the_tokenizer_of_the_json_file(tmp_path: Path, files: dict[str, Any]) -> None:
    write_merges(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = Tokenizer.load(tmp_path), Tokenizer(backend_of("bpe"))
    for one, other in zip(ours.pieces(ODD_TEXTS), theirs.pieces(ODD_TEXTS), strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.offsets.tolist() == other.offsets.tolist()
    assert (ours.form, ours.mask_id, ours.pad_id) == (theirs.form, 500, theirs.pad_id)
    assert ours.mask_takes_blanks


def test_the_first_deberta_writes_pairs_as_bert_does(tmp_path: Path) -> None:
    names = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]"}
    write_merges(tmp_path, tokenizer_class="DebertaTokenizer")
    file = tmp_path / "vocab.json"
    pieces = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(
        json.dumps({names.get(piece, piece): number for piece, number in pieces.items()} | {"[MASK]": 500}),
        encoding="utf-8",
    )
    ours, theirs = Tokenizer.load(tmp_path), Tokenizer(backend_of("bpe"))
    texts = [text for text in ODD_TEXTS if "<" not in text and "[" not in text]
    assert ours.ids(texts) == theirs.ids(texts)
    one, two = ours.pieces(["Ada met", "him"])
    cls, sep = ours.cls_id, ours.sep_id
    assert ours.pair(one, two).ids.tolist() == [cls, *one.ids, sep, *two.ids, sep]
    assert ours.pair(one, two).segment_ids.tolist() == [0] * (len(one) + 2) + [1] * (len(two) + 1)
    assert (cls, ours.pad_id, sep, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 500)
    assert ours.mask_takes_blanks


def test_the_first_word_has_a_blank_where_the_config_says_so(tmp_path: Path) -> None:
    folder = write_merges(tmp_path, add_prefix_space=True, added_tokens_decoder={"500": MASK_FLAGS})
    backend = backend_of("bpe")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    for text in ("Ada met", " Ada", ""):
        assert Tokenizer.load(folder).ids([text])[0] == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "the vocabulary lacks <mask>"),
        ({"added_tokens_decoder": {"7000": MASK_FLAGS}}, "gets the id 500, and its file says 7000"),
        ({"added_tokens_decoder": {"x": MASK_FLAGS}}, "the added pieces are damaged"),
        ({"added_tokens_decoder": {"500": {}}}, "must be a text or an object with a `content`"),
        ({"cls_token": 5}, "must be a text or an object"),
        ({"add_prefix_space": "yes"}, r"add_prefix_space \('yes'\) must be true or false"),
        ({"tokenizer_class": "GPT2Tokenizer"}, "tokenizer_class is GPT2Tokenizer"),
    ],
)
def test_what_the_files_do_not_say_right_is_refused(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.load(write_merges(tmp_path, **config))


def test_damaged_merges_are_refused(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        write_merges(tmp_path)
        (tmp_path / name).write_bytes(b"\xff{")
        with pytest.raises(CheckpointError, match="cannot be read as BPE"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "BertweetTokenizer", "DebertaV2Tokenizer"])
def test_a_vocabulary_of_another_class_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_PIECES), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"tokenizer_class": name}), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=f"none can be made of its other files .tokenizer_class is {name}"
    ):
        Tokenizer.load(tmp_path)


def test_mpnet_has_its_own_special_pieces_beside_berts(tmp_path: Path) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *SPECIAL_PIECES, "a", "b", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    a, b = tokenizer.pieces(["a", "b"])
    assert tokenizer.pair(a, b).ids.tolist() == [0, 9, 2, 2, 10, 2]
    assert not tokenizer.pair(a, b).segment_ids.any()
    found = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert found == tuple(pieces.index(piece) for piece in MPNET_PIECES)
    theirs = transformers.MPNetTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    two, one = tokenizer.pieces(["a b", "b"])
    assert theirs("a b", "b")["input_ids"] == tokenizer.pair(two, one).ids.tolist()
    check_saved(tokenizer, tmp_path, ["a b", "b"])


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_what_is_saved(tmp_path: Path, kind: str) -> None:
    write_tokenizer(tmp_path, kind)
    check_saved(Tokenizer.load(tmp_path), tmp_path, [*TRAINING_TEXTS, *ODD_TEXTS])


def check_saved(tokenizer: Tokenizer, folder: Path, texts: list[str]) -> None:
    """Fail unless transformers and the library read a saved tokenizer as it is."""
    saved = folder / "saved"
    saved.mkdir()
    tokenizer.save(saved, segments=False)
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    backend = tokenizers.Tokenizer.from_file(str(saved / "tokenizer.json"))
    texts = [text for text in texts if text and "[" not in text]  # it takes no empty text for a pair's
    for text, pieces in zip(texts, tokenizer.pieces(texts), strict=True):
        ids = tokenizer.single(pieces).ids.tolist()
        assert theirs(text)["input_ids"] == ids == backend.encode(text).ids
        assert theirs(text, text)["input_ids"] == tokenizer.pair(pieces, pieces).ids.tolist()
    ours = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id)
    assert ours == tuple(getattr(theirs, f"{name}_token_id") for name in ("cls", "sep", "pad", "unk", "mask"))
    mask = theirs.mask_token
    assert theirs(f"a {mask} b")["input_ids"] == backend.encode(f"a {mask} b").ids
    assert "token_type_ids" not in theirs(texts[0])
    assert Tokenizer.load(saved).form == tokenizer.form


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_saved_and_loaded_again_it_reads_the_same(
    kind: str, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    first = Tokenizer(backend_of(kind))
    first.save(folder)
    assert Tokenizer.load(folder).ids([text]) == first.ids([text])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_of_python_code_is_refused(kind: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, kind)
    file = tmp_path / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(
        json.dumps(content | {"auto_map": {"AutoTokenizer": ["own.Tokens", None]}}), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json has 'auto_map'"):
        Tokenizer.load(tmp_path)


AT_USER = {"content": "@user", "special": False, "normalized": True}


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, [2, 5, 1, 6, 3]),
        ({"added_tokens.json": {"@user": 10, "http": 9}}, [2, 5, 10, 9, 3]),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"10": AT_USER}}}, [2, 5, 10, 9, 3]),
        ({"tokenizer_config.json": {"cls_token": "<c>", "sep_token": "</c>"}}, [7, 5, 1, 6, 8]),
        (
            {"special_tokens_map.json": {"cls_token": {"content": "<c>"}, "sep_token": "</c>"}},
            [7, 5, 1, 6, 8],
        ),
        ({"tokenizer_config.json": {"unk_token": "http"}}, [2, 5, 9, 6, 3]),
        ({"tokenizer_config.json": {"bos_token": "<c>", "eos_token": "</c>"}}, [2, 5, 1, 6, 3]),
    ],
)
def test_a_vocabulary_obeys_the_files_beside_it(
    files: dict[str, dict[str, Any]], ids: list[int], tmp_path: Path
) -> None:
    pieces = [*SPECIAL_PIECES, "hello", "user", "<c>", "</c>", "http"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    text = "Hello @user http" if 10 in ids else "hello ? user"
    ours, theirs = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.single(ours.pieces([text])[0]).ids.tolist() == ids == theirs(text)["input_ids"]
    two, one = ours.pieces([text, "user"])
    assert ours.pair(two, one).ids.tolist() == theirs(text, "user")["input_ids"]


def test_a_stated_piece_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_PIECES), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "<c>"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="the vocabulary lacks <c>"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "values",
    [["<e1>", {"content": "<e2>"}, "<mask>"], {"first": "<e1>", "second": "<e2>"}],
    ids=["list", "object"],
)
def test_special_pieces_without_an_id_come_last(values: Any, tmp_path: Path) -> None:
    write_merges(tmp_path, added_tokens_decoder={"500": MASK_FLAGS}, additional_special_tokens=values)
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.token_to_id(piece) for piece in ("<mask>", "<e1>", "<e2>")] == [500, 501, 502]


def test_special_pieces_that_are_no_list_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"additional_special_tokens \('<e1>'\) must be a list"):
        Tokenizer.load(
            write_merges(tmp_path, added_tokens_decoder={"500": MASK_FLAGS}, additional_special_tokens="<e1>")
        )
