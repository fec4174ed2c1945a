"""Ids by way of the table are the tokenizer's own, and words of Chinese are jieba's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rjieba
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from bert.text.wordpiece import from_vocabulary
from bert.tokenizer import Tokenizer
from training.corpus.encoder import PartTable, SentenceEncoder

ENGLISH_PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c e ab ##a ##b ##c ##e abc . , # [ ] sep mask"
CHINESE_PIECES = "今 天 很 好 我 们 去 公 园 ! 。 卡 拉 o ##k t 恤 ok 1 ##2 µ ß ss σ"
ODD = "\u0301\u200b\xa0\u3000\u2028\x00\x0b\x0c\x1c\x85\t字\U0002b820\U0002b920\uf900İΣéﬁ\ufffd[SEP]"
TEXTS = st.lists(st.text(st.sampled_from("abceABC .,#今天很好我们T恤ok12" + ODD)), max_size=5)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("vocabulary"), lowercase=request.param)


def small_tokenizer(folder: Path, lowercase: bool = True) -> Tokenizer:
    return Tokenizer(backend(folder, lowercase))


def backend(folder: Path, lowercase: bool = True) -> Any:
    (folder / "vocab.txt").write_text(
        f"{ENGLISH_PIECES} {CHINESE_PIECES}".replace(" ", "\n"), encoding="utf-8"
    )
    return from_vocabulary(folder / "vocab.txt", lowercase)


def sentences_of(encoder: SentenceEncoder, texts: list[str]) -> list[list[int]]:
    found = encoder.encode(texts)
    return [part.tolist() for part in np.split(found.tokens, found.sentences[1:-1])]


@given(texts=TEXTS.filter(bool), chinese=st.booleans(), words=st.booleans())
def test_ids_are_those_of_the_tokenizer(
    tokenizer: Tokenizer, texts: list[str], chinese: bool, words: bool
) -> None:
    encoder = SentenceEncoder(tokenizer, chinese=chinese, segment_words=words)
    assert sentences_of(encoder, texts) == tokenizer.ids(texts)
    assert sentences_of(encoder, texts) == [pieces.ids.tolist() for pieces in tokenizer.pieces(texts)]


def test_pieces_that_start_with_hashes_go_on_with_a_word(tmp_path: Path) -> None:
    found = SentenceEncoder(small_tokenizer(tmp_path)).encode(["abcab ab.", "##a"])
    assert found.continues.tolist() == [False, True, True, False, False, False, False, False]


@given(text=st.text(st.sampled_from("今天很好我们去公园a b1卡拉ok。!字恤T\x0c")))
def test_chinese_words_are_those_of_jieba_by_offsets(tokenizer: Tokenizer, text: str) -> None:
    pieces = tokenizer.pieces([text])[0]
    words = np.repeat(np.arange(len(rjieba.cut(text))), [len(word) for word in rjieba.cut(text)])
    expected = []
    for index, (start, _) in enumerate(pieces.offsets):
        hashes = tokenizer.id_to_token(pieces.ids[index]).startswith("##")
        before = start - 1
        same_word = before >= 0 and words[before] == words[start]
        both = before >= 0 and "一" <= text[start] <= "龥" and "一" <= text[before] <= "龥"
        expected.append(hashes or bool(same_word and both))
    found = SentenceEncoder(tokenizer, segment_words=True).encode([text])
    assert found.continues.tolist() == expected


def test_words_of_a_known_sentence(tmp_path: Path) -> None:
    encoder = SentenceEncoder(small_tokenizer(tmp_path), segment_words=True)
    found = encoder.encode(["我们去公园。", "园很好"])
    assert found.sentences.tolist() == [0, 6, 9]
    assert found.continues.astype(int).tolist() == [0, 1, 0, 0, 1, 0, 0, 0, 0]


def test_long_texts_are_taken_apart_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer(tmp_path)
    texts = ["abcab c", "a", "", "今天 a", "b b b b b b", "ab"]
    whole = SentenceEncoder(tokenizer, segment_words=True).encode(texts)
    for characters in (1, 5, 9, 100):
        monkeypatch.setattr("training.corpus.encoder.BATCH_CHARACTERS", characters)
        found = SentenceEncoder(tokenizer, segment_words=True).encode(texts)
        for part in ("tokens", "continues", "sentences"):
            np.testing.assert_array_equal(getattr(found, part), getattr(whole, part))
    assert SentenceEncoder(tokenizer).encode([]).sentences[-1] == 0


def test_a_full_table_starts_afresh_and_gives_the_same(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    table = PartTable(tokenizer, max_parts=4)
    for parts in (["a", "\n", "b"], ["abcab", "c", "a"], ["e", "", "b", "a", "abc"], ["a"]):
        rows = table.rows(parts)
        ids = [
            table.ids[first : first + table.counts[row]].tolist()
            for row in rows
            for first in [table.firsts[row]]
        ]
        assert ids == [[] if part == "\n" else tokenizer.ids([part])[0] for part in parts]


def test_a_tokenizer_that_looks_over_spaces_is_asked_for_whole_sentences(tmp_path: Path) -> None:
    over_spaces = backend(tmp_path)
    over_spaces.add_tokens([AddedToken("a b", special=False)])
    tokenizer = Tokenizer(over_spaces)
    assert not tokenizer.splits_at_spaces
    texts = ["c a b c", "a", "a b"]
    assert sentences_of(SentenceEncoder(tokenizer, chinese=True), texts) == tokenizer.ids(texts)
