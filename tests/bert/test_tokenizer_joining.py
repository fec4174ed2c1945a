"""Special tokens, pairs, truncation and windows, against slow obvious versions and against transformers."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizer

from bert.encoding import Encoding, Pieces
from bert.errors import InputError, TextTooLongError
from bert.tokenizer import Tokenizer, longest_first
from tests.support.reading import character_tokenizer

TOKENIZER = character_tokenizer()
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id
LENGTHS = st.integers(0, 40)


def numbered(length: int, first: int = 100) -> Pieces:
    """Return pieces that can be told apart: ids count from `first`."""
    counted = np.arange(first, first + length, dtype=np.int32)
    return Pieces(counted, np.stack([counted, counted + 1], axis=1), counted)


def check(encoding: Encoding, *texts: list[int]) -> None:
    """Fail unless the encoding is [CLS] and these pieces, each text with a [SEP] after it."""
    ids, segments, sequences = [CLS], [0], [-1]
    for number, text in enumerate(texts):
        ids += [*text, SEP]
        segments += [number] * (len(text) + 1)
        sequences += [*[number] * len(text), -1]
    assert encoding.ids.tolist() == ids and len(encoding) == len(ids)
    assert encoding.segment_ids.tolist() == segments
    assert encoding.sequence_ids.tolist() == sequences
    special = encoding.sequence_ids == -1
    assert (encoding.word_ids == np.where(special, -1, encoding.ids)).all()
    assert (encoding.offsets[special] == 0).all()
    assert (encoding.offsets[~special, 0] == encoding.ids[~special]).all()


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@given(first=LENGTHS, second=LENGTHS)
def test_special_tokens_stand_around_one_or_two_texts(first: int, second: int) -> None:
    a, b = numbered(first), numbered(second, 500)
    check(TOKENIZER.single(a), a.ids.tolist())
    check(TOKENIZER.pair(a, b), a.ids.tolist(), b.ids.tolist())


@given(length=LENGTHS, max_tokens=st.integers(2, 50))
def test_one_text_loses_its_end(length: int, max_tokens: int) -> None:
    text = numbered(length)
    encoding = TOKENIZER.single(text, max_tokens, truncate=True)
    check(encoding, text.ids[: max_tokens - 2].tolist())
    assert encoding.truncated == (length + 2 > max_tokens)


@given(first=LENGTHS, second=LENGTHS, max_tokens=st.integers(3, 90))
def test_a_pair_loses_from_the_longer_text_a_piece_at_a_time(
    first: int, second: int, max_tokens: int
) -> None:
    a, b = numbered(first).ids.tolist(), numbered(second, 500).ids.tolist()
    while len(a) + len(b) > max_tokens - 3:  # google-research/bert, _truncate_seq_pair
        (a if len(a) > len(b) else b).pop()
    encoding = TOKENIZER.pair(numbered(first), numbered(second, 500), max_tokens, truncate=True)
    check(encoding, a, b)
    assert encoding.truncated == (first + second + 3 > max_tokens)


@given(first=st.integers(1, 40), second=st.integers(1, 40), room=st.integers(1, 80))
def test_a_pair_is_cut_as_transformers_python_tokenizers_cut_it(first: int, second: int, room: int) -> None:
    too_many = max(0, first + second - room)
    a, b, _ = PreTrainedTokenizer.truncate_sequences(
        SimpleNamespace(truncation_side="right"), [0] * first, [0] * second, too_many, "longest_first"
    )
    assert longest_first(first, second, room) == (len(a), len(b))


@pytest.mark.parametrize("lengths", [(3, 30), (30, 3), (20, 20), (17, 30), (30, 17), (30, 29)])
@pytest.mark.parametrize("max_tokens", [9, 10, 23, 24, 35, 36])
def test_a_pair_is_cut_as_transformers_cuts_it(
    packaged: Tokenizer, theirs: Any, lengths: tuple[int, int], max_tokens: int
) -> None:
    texts = ["one " * lengths[0], "two " * lengths[1]]
    first, second = packaged.pieces(texts)
    ours = packaged.pair(first, second, max_tokens, truncate=True)
    expected = theirs(*texts, truncation="longest_first", max_length=max_tokens)
    room = max_tokens - 3
    if min(lengths) * 2 > room and room % 2:  # the odd piece: theirs gives it to the text that was longer
        assert len(ours) == len(expected["input_ids"])
        assert abs(sum(ours.segment_ids) - sum(expected["token_type_ids"])) <= 1
    else:
        assert ours.ids.tolist() == expected["input_ids"]
        assert ours.segment_ids.tolist() == expected["token_type_ids"]


def test_a_text_too_long_is_refused_with_both_counts() -> None:
    with pytest.raises(TextTooLongError, match="has 12 tokens and the model reads at most 11") as caught:
        TOKENIZER.single(numbered(10), 11)
    assert (caught.value.tokens, caught.value.max_tokens) == (12, 11)
    with pytest.raises(TextTooLongError, match="has 13 tokens"):
        TOKENIZER.pair(numbered(4), numbered(6), 12)


def test_a_text_that_just_fits_is_whole() -> None:
    assert not TOKENIZER.single(numbered(10), 12).truncated
    assert not TOKENIZER.pair(numbered(4), numbered(6), 13, truncate=True).truncated


def test_there_must_be_room_for_the_special_tokens() -> None:
    with pytest.raises(InputError, match=r"max_tokens \(1\) is less than the 2 special tokens"):
        TOKENIZER.single(numbered(10), 1, truncate=True)
    with pytest.raises(InputError, match=r"max_tokens \(2\) is less than the 3 special tokens"):
        TOKENIZER.pair(numbered(10), numbered(10), 2, truncate=True)


@given(
    length=st.integers(0, 200),
    prefix=st.none() | st.integers(0, 10),
    room=st.integers(1, 40),
    stride=st.integers(0, 50),
)
def test_windows_cover_the_text_and_share_the_stride(
    length: int, prefix: int | None, room: int, stride: int
) -> None:
    text, question = numbered(length), None if prefix is None else numbered(prefix, 900)
    max_tokens = room + 2 + (0 if prefix is None else prefix + 1)
    windows = TOKENIZER.windows(text, max_tokens, stride, question)
    before = [] if question is None else [question.ids.tolist()]
    for window in windows:
        check(window.encoding, *before, text.ids[window.start : window.stop].tolist())
        assert len(window.encoding) <= max_tokens
    assert windows[0].start == 0 and windows[-1].stop == length
    for left, right in pairwise(windows):
        assert left.stop - left.start == room
        assert left.stop - right.start == min(stride, room // 2)
        assert right.stop > left.stop


@pytest.mark.parametrize(("max_tokens", "stride"), [(384, 128), (64, 16), (64, 0), (40, 11), (512, 128)])
def test_windows_are_those_of_transformers(
    packaged: Tokenizer, theirs: Any, max_tokens: int, stride: int
) -> None:
    question, context = "Who went home?", "Zoë went home, she said; others did not. " * 60
    q, c = packaged.pieces([question, context])
    expected = theirs(
        question,
        context,
        truncation="only_second",
        max_length=max_tokens,
        stride=stride,
        return_overflowing_tokens=True,
    )
    ours = [w.encoding for w in packaged.windows(c, max_tokens, stride, prefix=q)]
    assert [e.ids.tolist() for e in ours] == expected["input_ids"]
    assert [e.segment_ids.tolist() for e in ours] == expected["token_type_ids"]
    alone = theirs(
        context, truncation=True, max_length=max_tokens, stride=stride, return_overflowing_tokens=True
    )
    assert [w.encoding.ids.tolist() for w in packaged.windows(c, max_tokens, stride)] == alone["input_ids"]


def test_windows_need_room_and_a_stride() -> None:
    with pytest.raises(InputError, match="the question's 5 pieces leave no room for the text in 8 tokens"):
        TOKENIZER.windows(numbered(3), 8, 0, prefix=numbered(5))
    with pytest.raises(InputError, match="the special tokens leave no room for the text in 2 tokens"):
        TOKENIZER.windows(numbered(3), 2, 0)
    with pytest.raises(InputError, match=r"stride \(-1\)"):
        TOKENIZER.windows(numbered(3), 8, -1)
