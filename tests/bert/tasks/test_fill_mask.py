"""Masks found in the user's text, the best pieces, and the text with a piece put in."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from bert.errors import CheckpointError, InputError, TextTooLongError
from bert.tasks import fill_mask
from bert.tasks.fill_mask import MASK, FillMaskTask, best_pieces, decode, encode, fill, hide, mask_positions
from bert.tasks.spec import TaskSpec
from bert.tasks.task import softmax
from bert.text.special_tokens import written
from bert.text.wordpiece import SPECIAL_PIECES
from bert.tokenizer import Tokenizer
from tests.support.odd_texts import TEXTS
from tests.support.tokenizers import KINDS, backend_of

PIECES = [
    *SPECIAL_PIECES,
    "play",
    "##ing",
    "##s",
    "london",
    "in",
    "the",
    "北",
    "京",
    "很",
    "大",
    "[",
    "]",
    "sep",
    "mask",
    ".",
]
BACKEND = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
MASKED_TEXTS = st.lists(TEXTS, min_size=2, max_size=4).map(MASK.join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    file.write_text("\n".join(PIECES), encoding="utf-8")
    return Tokenizer.load(file)


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    (pieces,) = fill_mask.pieces(tokenizer, [text])
    return [tokenizer.id_to_token(i) for i in pieces.ids]


def test_mask_is_the_special_piece_and_nothing_else_is(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "in [MASK].") == ["in", "[MASK]", "."]
    assert tokens(tokenizer, "play[MASK]in") == ["play", "[MASK]", "in"]
    assert tokens(tokenizer, "[MASK][MASK]") == ["[MASK]", "[MASK]"]
    assert tokens(tokenizer, "[SEP] [MASK]") == ["[", "sep", "]", "[MASK]"]
    assert tokens(tokenizer, "[mask]") == ["[", "mask", "]"]


@given(text=MASKED_TEXTS)
def test_every_mask_is_found_with_its_characters(text: str, packaged: Tokenizer) -> None:
    (pieces,) = fill_mask.pieces(packaged, [text])
    assert {array.dtype for array in (pieces.ids, pieces.offsets, pieces.word_ids)} == {np.dtype(np.int32)}
    encoding = encode(packaged, pieces, 10_000)
    spans = encoding.offsets[mask_positions(encoding)].tolist()
    assert [text[start:end] for start, end in spans] == [MASK] * text.count(MASK)
    assert (encoding.ids == packaged.mask_id).sum() == len(spans)
    starts, words = pieces.offsets[:, 0], pieces.word_ids[pieces.word_ids >= 0]
    assert (np.diff(starts) >= 0).all() and (pieces.offsets[:, 1] <= len(text)).all()
    assert (np.diff(words) >= 0).all() and len(set(words.tolist())) == (words[-1] + 1 if len(words) else 0)


@pytest.fixture(scope="module")
def backend(minilm: Path) -> tokenizers.Tokenizer:
    """What transformers tokenises with: special pieces in a text are special."""
    found = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    found.no_truncation()
    found.no_padding()
    return found


@given(text=MASKED_TEXTS)
def test_ids_are_those_of_transformers(text: str, backend: tokenizers.Tokenizer, packaged: Tokenizer) -> None:
    if any(piece in text for piece in SPECIAL_PIECES if piece != MASK):
        return  # there transformers puts the special pieces, meant or not
    (pieces,) = fill_mask.pieces(packaged, [text])
    assert encode(packaged, pieces, 10_000).ids.tolist() == backend.encode(text).ids


def test_a_text_without_a_mask_is_refused(tokenizer: Tokenizer) -> None:
    for text in ("", "in the", "[mask]"):
        (pieces,) = fill_mask.pieces(tokenizer, [text])
        with pytest.raises(InputError, match=r"has no \[MASK\]"):
            encode(tokenizer, pieces, 8)


def test_a_text_over_the_models_length_is_refused_never_cut(tokenizer: Tokenizer) -> None:
    (pieces,) = fill_mask.pieces(tokenizer, ["in the [MASK] in the london"])
    assert len(encode(tokenizer, pieces, 8)) == 8
    with pytest.raises(TextTooLongError, match="8 tokens"):
        encode(tokenizer, pieces, 7)


@given(
    rows=st.lists(st.lists(st.integers(-5, 5), min_size=7, max_size=7), min_size=1, max_size=4),
    count=st.integers(1, 9),
)
def test_best_pieces_are_those_of_a_full_sort(rows: list[list[int]], count: int) -> None:
    logits = np.array(rows, np.float32)
    found = best_pieces(logits, count)
    assert found.shape == (len(rows), 2, min(count, 7)) and found.dtype == np.float32
    for row, (ids, scores) in zip(logits, found, strict=True):
        shares = softmax(row)
        assert sorted(-row)[: len(ids)] == [-row[int(i)] for i in ids]
        assert scores == pytest.approx([shares[int(i)] for i in ids])
        assert len(set(ids.tolist())) == len(ids)


def test_pieces_of_equal_logits_are_in_the_order_of_their_ids() -> None:
    assert best_pieces(np.array([[1, 2, 1, 2, 0]], np.float32), 4)[0, 0].tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("in [MASK].", "london", "in london."),
        ("  In\t[MASK]  ,", "the", "  In\tthe  ,"),
        ("play [MASK] in", "##ing", "playing in"),
        ("play[MASK]", "##s", "plays"),
        ("[MASK] in", "##s", "s in"),
        ("很[MASK]。", "大", "很大。"),
        ("[MASK]", "##", "##"),
        ("👩‍👩‍👧 [MASK] 🙂", "in", "👩‍👩‍👧 in 🙂"),
    ],
)
def test_the_users_own_text_is_filled(text: str, token: str, expected: str) -> None:
    start = text.index(MASK)
    assert fill(text, start, start + len(MASK), *written(BACKEND, token)) == expected


def test_each_mask_gets_its_candidates_and_the_other_masks_stay(tokenizer: Tokenizer) -> None:
    text = "Play [MASK] 北[MASK]"
    (pieces,) = fill_mask.pieces(tokenizer, [text])
    encoding = encode(tokenizer, pieces, 32)
    logits = np.zeros((2, len(PIECES)), np.float32)
    logits[0, PIECES.index("##ing")], logits[1, PIECES.index("京")] = 5, 5
    first, second = decode(text, encoding, best_pieces(logits), tokenizer, top_k=2)
    assert (first.start, first.end, second.start, second.end) == (5, 11, 13, 19)
    assert (first.candidates[0].token, first.candidates[0].sequence) == ("##ing", "Playing 北[MASK]")
    assert (second.candidates[0].id, second.candidates[0].sequence) == (
        PIECES.index("京"),
        "Play [MASK] 北京",
    )
    assert first.candidates[0].score == pytest.approx(np.exp(5) / (np.exp(5) + len(PIECES) - 1))
    assert len(first.candidates) == len(second.candidates) == 2


def test_rows_beyond_the_vocabulary_are_no_candidates(tokenizer: Tokenizer) -> None:
    (pieces,) = fill_mask.pieces(tokenizer, [MASK])
    logits = np.arange(len(PIECES) + 4, dtype=np.float32)[None]
    (mask,) = decode(MASK, encode(tokenizer, pieces, 8), best_pieces(logits), tokenizer, top_k=1)
    assert mask.candidates[0].token == PIECES[-1]


def test_what_does_not_fit_is_refused(tokenizer: Tokenizer) -> None:
    (pieces,) = fill_mask.pieces(tokenizer, [MASK])
    encoding = encode(tokenizer, pieces, 8)
    with pytest.raises(ValueError, match=r"\(1, 2, K\) is needed"):
        decode(MASK, encoding, np.zeros((2, 2, 3), np.float32), tokenizer)


def test_pieces_are_hidden_behind_masks(tokenizer: Tokenizer) -> None:
    (plain,) = tokenizer.pieces(["in the london"])
    hidden = hide(plain, [1], fill_mask.mask_id(tokenizer))
    encoding = encode(tokenizer, hidden, 8)
    assert encoding.ids[mask_positions(encoding)].tolist() == [tokenizer.mask_id]
    assert mask_positions(encoding).tolist() == [2]
    assert (plain.word_ids >= 0).all()  # the given pieces stay as they were


PLAIN = TEXTS.filter(lambda text: "[" not in text and "#" not in text)
KNOWN = {kind: (Tokenizer(backend_of(kind)), backend_of(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [False, True])
@settings(max_examples=30)
@given(parts=st.lists(PLAIN, min_size=2, max_size=4))
def test_masks_of_every_kind_are_where_the_library_puts_them(kind: str, own: bool, parts: list[str]) -> None:
    ours, theirs = KNOWN[kind]
    mask = str(ours.mask_piece)
    text = (mask if own else MASK).join(parts)
    (pieces,) = fill_mask.pieces(ours, [text])
    encoding = encode(ours, pieces, 10_000)
    assert encoding.ids.tolist() == theirs.encode(mask.join(parts)).ids
    spans = encoding.offsets[mask_positions(encoding)].tolist()
    assert [text[start:end] for start, end in spans] == [mask if own else MASK] * (len(parts) - 1)


@pytest.mark.parametrize(
    ("kind", "text", "piece", "expected"),
    [
        ("bpe", "the [MASK] was", "Ġfilm", "the film was"),
        ("bpe", "the [MASK] was", "s", "thes was"),
        ("bpe", "[MASK] was", "the", "the was"),
        ("bpe", "the<mask>.", "Ġfilm", "the film."),
        ("bpe", "很[MASK]", "Ġfilm", "很 film"),
        ("bpe", " [MASK]", "the", " the"),
        ("unigram", "the [MASK] was", "▁me", "the me was"),
        ("unigram", "the [MASK] was", "s", "thes was"),
        ("unigram", "in <mask>, where", "▁Munich", "in Munich, where"),
    ],
)
def test_pieces_of_every_kind_are_written_as_text(kind: str, text: str, piece: str, expected: str) -> None:
    tokenizer = Tokenizer(with_pieces(kind, piece))
    (read,) = fill_mask.pieces(tokenizer, [text])
    best = np.array([[[tokenizer.token_to_id(piece)], [1.0]]], np.float32)
    (mask,) = decode(text, encode(tokenizer, read, 32), best, tokenizer, top_k=1)
    assert (mask.candidates[0].token, mask.candidates[0].sequence) == (piece, expected)


def with_pieces(kind: str, piece: str) -> tokenizers.Tokenizer:
    backend = backend_of(kind)
    if backend.token_to_id(piece) is None:
        backend.add_tokens([piece])
    return backend


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na", encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(CheckpointError, match="has no mask"):
        fill_mask.pieces(tokenizer, ["a [MASK]"])
    with pytest.raises(CheckpointError, match="has no mask"):
        FillMaskTask().sample(tokenizer, tokenizer.pieces(["a"]), TaskSpec("fill_mask", max_tokens=8))
