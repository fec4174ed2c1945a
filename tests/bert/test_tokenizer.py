"""The ids against two others: transformers' tokenizer, and the paper's own code in Python."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.bert import tokenization_bert_legacy as original
from transformers.models.bert.tokenization_bert import load_vocab

from bert.errors import CheckpointError, InputError
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import LONG_TEXTS, ODD_TEXTS, TEXTS
from tests.support.reading import AWKWARD_TEXTS, character_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARIES = {"uncased": True, "cased": False, "chinese": True}


@dataclass(frozen=True)
class Vocabulary:
    """One of BERT's vocabularies, read by us and by others."""

    file: Path
    lowercase: bool
    tokenizer: Tokenizer

    def theirs(self) -> Any:
        """Return transformers' tokenizer, the fast one."""
        return transformers.BertTokenizer(vocab=load_vocab(str(self.file)), do_lower_case=self.lowercase)

    def original_pieces(self, texts: list[str]) -> list[list[str]]:
        """Tokenise as google-research/bert does, in Python, a character at a time."""
        words = original.BasicTokenizer(do_lower_case=self.lowercase)
        pieces = original.WordpieceTokenizer(vocab=load_vocab(str(self.file)), unk_token="[UNK]")
        return [[p for word in words.tokenize(text) for p in pieces.tokenize(word)] for text in texts]


@cache
def read_vocabulary(file: Path, lowercase: bool) -> Vocabulary:
    return Vocabulary(file, lowercase, Tokenizer.load(file))


@pytest.fixture(params=VOCABULARIES)
def vocabulary(request: pytest.FixtureRequest, shared_data: Path) -> Vocabulary:
    name = request.param
    return read_vocabulary(shared_data / "vocab" / f"bert-base-{name}.txt", VOCABULARIES[name])


def ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text between [CLS] and [SEP], as the model reads them."""
    return [tokenizer.single(p).ids.tolist() for p in tokenizer.pieces(texts)]


def without_special(texts: tuple[str, ...]) -> list[str]:
    return [text for text in texts if not any(piece in text for piece in SPECIAL)]


def test_real_texts_have_the_ids_of_transformers(vocabulary: Vocabulary, real_texts: list[str]) -> None:
    assert ids(vocabulary.tokenizer, real_texts) == vocabulary.theirs()(real_texts)["input_ids"]


def test_odd_and_long_texts_have_the_ids_of_transformers(vocabulary: Vocabulary) -> None:
    texts = without_special(ODD_TEXTS + LONG_TEXTS)
    assert ids(vocabulary.tokenizer, texts) == vocabulary.theirs()(texts)["input_ids"]


def test_real_texts_have_the_pieces_of_the_papers_code(vocabulary: Vocabulary, real_texts: list[str]) -> None:
    tokenizer, texts = vocabulary.tokenizer, real_texts[::3]
    ours = [[tokenizer.id_to_token(i) for i in p.ids] for p in tokenizer.pieces(texts)]
    assert ours == vocabulary.original_pieces(texts)


def test_the_packaged_tokenizer_is_the_one_of_transformers(minilm: Path, packaged: Tokenizer) -> None:
    texts = without_special(ODD_TEXTS + LONG_TEXTS)
    assert ids(packaged, texts) == transformers.AutoTokenizer.from_pretrained(minilm)(texts)["input_ids"]


def test_a_long_text_is_not_cut_though_the_file_asks_for_it(minilm: Path, packaged: Tokenizer) -> None:
    assert (
        json.loads((minilm / "tokenizer.json").read_text(encoding="utf-8"))["truncation"]["max_length"] == 128
    )
    assert len(packaged.pieces(["one two " * 2500])[0]) == 5000


def test_special_pieces_in_a_text_are_plain_characters(minilm: Path, packaged: Tokenizer) -> None:
    # On purpose not as in transformers, where whoever writes a text can place a [SEP].
    text = "one [SEP] two [MASK]"
    found = packaged.pieces([text])[0]
    pieces = [packaged.id_to_token(i) for i in found.ids]
    assert pieces == ["one", "[", "sep", "]", "two", "[", "mask", "]"]
    assert packaged.sep_id in transformers.AutoTokenizer.from_pretrained(minilm)(text)["input_ids"][1:-1]


@given(text=TEXTS)
def test_no_text_can_make_a_special_id(text: str) -> None:
    tokenizer = character_tokenizer()
    found = set(tokenizer.pieces([text])[0].ids.tolist())
    assert not found & {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}


@pytest.mark.parametrize("text", ["\ud800", "half an emoji \ud83d", "\udfff!"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        character_tokenizer().pieces(["fine", text])


def test_no_texts_have_no_pieces() -> None:
    assert character_tokenizer().pieces([]) == []


@given(texts=st.lists(TEXTS, max_size=5))
def test_a_text_is_read_the_same_in_any_company(texts: list[str]) -> None:
    tokenizer = character_tokenizer()
    together = [p.ids.tolist() for p in tokenizer.pieces(texts)]
    assert together == [tokenizer.pieces([text])[0].ids.tolist() for text in texts]


def test_eight_threads_read_the_same() -> None:
    tokenizer, texts = character_tokenizer(), list(AWKWARD_TEXTS) * 20

    def read(_: int) -> list[list[list[int]]]:
        return [[p.ids.tolist(), p.offsets.ravel().tolist()] for p in tokenizer.pieces(texts)]

    alone = read(0)
    with ThreadPoolExecutor(8) as threads:
        assert all(found == alone for found in threads.map(read, range(32)))


def test_special_ids_are_those_of_the_vocabulary() -> None:
    tokenizer = character_tokenizer()
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert special == (0, 1, 2, 3, 4)
    assert tuple(tokenizer.id_to_token(i) for i in special) == SPECIAL
    assert tokenizer.token_to_id("no such piece") is None


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(InputError, match=f"token id {token_id} is not one of"):
        character_tokenizer().id_to_token(token_id)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.save(tmp_path)
    assert ids(Tokenizer.load(tmp_path), list(ODD_TEXTS)) == ids(tokenizer, list(ODD_TEXTS))


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False}]
)
def test_transformers_loads_what_is_saved(tmp_path: Path, config: dict[str, bool]) -> None:
    pieces = [*SPECIAL, "Zoë", "zoë", "zoe", "went", "Went", "北京", "北", "京"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer, saved = Tokenizer.load(tmp_path), tmp_path / "saved"
    saved.mkdir()
    tokenizer.save(saved)
    texts = ["Zoë Went zoe", "北京"]
    assert transformers.AutoTokenizer.from_pretrained(saved)(texts)["input_ids"] == ids(tokenizer, texts)
    generic = transformers.PreTrainedTokenizerFast(tokenizer_file=str(saved / "tokenizer.json"))
    first, second = tokenizer.pieces(texts)
    assert generic(*texts)["input_ids"] == tokenizer.pair(first, second).ids.tolist()


def test_a_folder_without_a_tokenizer_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds none of tokenizer\.json, vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"version": "1.0", "model": {"type": "Unknown"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path)
