"""Tokenising by parts gives the pieces of the whole text, and stops at the token limit and the deadline."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from bert.encoding import Pieces, Window
from bert.errors import DeadlineExceededError, RequestTooLargeError
from bert.tasks.ner import word_heads
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from service.engine.models import Model
from service.pipeline import pipeline, text_parts
from service.pipeline.inputs import RequestContext, Texts
from service.pipeline.pipeline import BoundedTokenizer, Threads, window_tokens
from service.tasks.ner import text_windows
from tests.support.odd_texts import TEXTS
from tests.support.sentencepiece_files import charsmap
from tests.support.tiny import vocabulary
from tests.support.tokenizers import KINDS, TRAINING_TEXTS, backend_of

ODD = st.text(st.sampled_from("ab ,.!\n\t\u00e9\u0301\u4e2d\u6587\u200b\U0001f642\u3000-[]MASK"), max_size=60)


def with_charsmap() -> Tokenizer:
    """Return XLM-R's kind with a compiled normalisation, some of whose characters become blanks."""
    backend = backend_of("unigram")
    compiled = charsmap({"ﬁ": "fi", "\u3000": " ", "\u200b": " ", "½": "1/2", "é": "e"})
    backend.normalizer = normalizers.Precompiled(compiled)
    return Tokenizer(backend)


TOKENIZERS = {kind: Tokenizer(backend_of(kind)) for kind in KINDS}
TOKENIZERS["unigram"] = with_charsmap()
LANGUAGES = st.lists(st.sampled_from(TRAINING_TEXTS) | TEXTS | ODD, max_size=3).map(" ".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    vocab = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocab.write_text("\n".join([*vocabulary(), "\u4e2d"]), encoding="utf-8")
    return Tokenizer.load(vocab)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text_parts, pipeline):
        monkeypatch.setattr(module, "PART_CHARACTERS", 5)
    monkeypatch.setattr(text_parts, "TEXT_CHARACTERS", 0)
    monkeypatch.setattr(pipeline, "INLINE_CHARACTERS", 0)


@dataclass(frozen=True)
class Bounded:
    """Reads as one request does, on a loop of its own."""

    tokenizer: Tokenizer
    max_tokens: int = 10**6
    timeout_ms: float = 60_000

    def pieces(self, texts: Sequence[str], max_pieces: int | None = None) -> list[Pieces]:
        async def read() -> list[Pieces]:
            threads, call = Threads(2, 10**9), RequestContext("id", "/ner", time.monotonic(), self.timeout_ms)
            try:
                return await BoundedTokenizer(call, self.tokenizer, self.max_tokens, threads).pieces(
                    texts, max_pieces
                )
            finally:
                await threads.close()

        return asyncio.run(read())


def same(one: Pieces, other: Pieces) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "offsets", "word_ids")
    )


@settings(deadline=None)
@given(st.lists(ODD, max_size=5))
def test_joined_parts_equal_the_whole_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    found, whole = Bounded(tokenizer).pieces(texts), tokenizer.pieces(texts)
    assert len(found) == len(whole)
    assert all(same(one, other) for one, other in zip(found, whole, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(texts=st.lists(LANGUAGES, max_size=4))
def test_joined_parts_equal_the_whole_text_with_every_kind_of_tokenizer(kind: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    for one, other in zip(Bounded(tokenizer).pieces(texts), tokenizer.pieces(texts), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()
        assert word_heads(one).tolist() == word_heads(other).tolist()
        assert (one.word_ids < 0).tolist() == (other.word_ids < 0).tolist()


# In DeBERTa's the blank before a word is part of its first piece, and would be stripped at a part's beginning. Gemma's
# pieces may reach over blanks.
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"unigram_deberta", "gemma"}))
def test_every_kind_is_read_in_parts(kind: str) -> None:
    parts = text_parts.split_texts([TRAINING_TEXTS[0]], TOKENIZERS[kind])
    assert len(parts) > 5 and "".join(part.texts[0] for part in parts) == TRAINING_TEXTS[0]


def test_a_tokenizer_whose_pieces_reach_over_spaces_reads_texts_whole() -> None:
    metaspace, regex, joining, added = (backend_of(kind) for kind in ("unigram", "bpe", "unigram", "bpe"))
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    regex.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)
    joining.normalizer = normalizers.Replace("a b", "ab")
    added.add_tokens(["a b"])
    for backend in (metaspace, regex, joining, added):
        assert len(text_parts.split_texts(["one two three four"], Tokenizer(backend))) == 1


@settings(deadline=None)
@given(ODD, st.integers(1, 20))
def test_the_first_pieces_are_those_of_the_whole_text(
    tokenizer: Tokenizer, text: str, max_pieces: int
) -> None:
    (found,), (whole,) = Bounded(tokenizer).pieces([text], max_pieces), tokenizer.pieces([text])
    assert same(found.slice(0, max_pieces), whole.slice(0, max_pieces))
    assert len(found) == len(whole) or len(found) >= max_pieces


def test_a_request_that_is_too_large_is_refused_before_all_is_read(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, pieces = 0, tokenizer.pieces

    def counting(texts: Sequence[str], *, only_ids: bool = False) -> list[Pieces]:
        nonlocal read
        read += sum(map(len, texts))
        return pieces(texts, only_ids=only_ids)

    monkeypatch.setattr(tokenizer, "pieces", counting)
    with pytest.raises(RequestTooLargeError) as refused:
        Bounded(tokenizer, max_tokens=100).pieces(["!" * 10_000])
    assert refused.value.max_tokens == 100
    assert read < 130  # two threads, each a batch ahead at most
    assert len(Bounded(tokenizer, 100).pieces(["a " * 50, "b " * 50])) == 2
    with pytest.raises(RequestTooLargeError):
        Bounded(tokenizer, 100).pieces(["a " * 50, "b " * 51])


def test_only_the_used_tokens_of_truncated_texts_count(tokenizer: Tokenizer) -> None:
    assert len(Bounded(tokenizer, 100).pieces(["a " * 5000] * 10, max_pieces=10)) == 10


def test_nothing_is_read_after_the_deadline(tokenizer: Tokenizer) -> None:
    with pytest.raises(DeadlineExceededError):
        Bounded(tokenizer, timeout_ms=-1).pieces(["a"])


def test_windows_of_blanks_alone_are_left_out() -> None:
    spec = TaskSpec("ner", ("O",), max_tokens=8)
    model = cast(Model, SimpleNamespace(spec=spec, tokenizer=TOKENIZERS["bpe"]))
    texts = Texts.of("text", ["  \n ", "Ada" + " \n" * 30 + "met"])

    async def read() -> list[list[Window]]:
        threads, call = Threads(2, 10**9), RequestContext("id", "/ner", time.monotonic(), 60_000)
        try:
            bounded = BoundedTokenizer(call, model.tokenizer, 10**6, threads)
            return (await text_windows(bounded, model, texts))[1]
        finally:
            await threads.close()

    blank, words = asyncio.run(read())
    assert blank == []
    assert len(words) == 2 and all((window.encoding.word_ids >= 0).any() for window in words)


@settings(deadline=None)
@given(
    pieces=st.integers(0, 200),
    max_tokens=st.integers(8, 40),
    stride=st.integers(0, 40),
    prefix=st.none() | st.integers(0, 20),
)
def test_window_tokens_equals_the_tokens_of_the_windows(
    tokenizer: Tokenizer, pieces: int, max_tokens: int, stride: int, prefix: int | None
) -> None:
    def numbered(count: int) -> Pieces:
        ids = np.arange(count, dtype=np.int32)
        return Pieces(ids, np.stack([ids, ids + 1], axis=1), ids)

    around = 2 if prefix is None else prefix + 3
    if max_tokens - around < 1:
        assert window_tokens(pieces, max_tokens, stride, around) == 0
        return
    asked = None if prefix is None else numbered(prefix)
    windows = tokenizer.windows(numbered(pieces), max_tokens, stride, asked)
    assert window_tokens(pieces, max_tokens, stride, around) == sum(len(w.encoding) for w in windows)
