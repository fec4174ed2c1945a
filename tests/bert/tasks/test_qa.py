"""Questions and paragraphs to windows, and where the answer lies in each, against a slow obvious version."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bert.encoding import Encoding
from bert.errors import InputError
from bert.tasks import qa
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer, Window
from tests.support.odd_texts import ODD_TEXTS, TEXTS
from tests.support.reading import character_tokenizer, read

TOKENIZER = character_tokenizer()
SPEC = TaskSpec("qa", max_tokens=24, stride=6, max_question_tokens=8)
CONTEXT = "Ada Lovelace met  Charles Babbage in London in 1833."


def windows(question: str, context: str, spec: TaskSpec = SPEC) -> list[Window]:
    return qa.encode(TOKENIZER, read(TOKENIZER, question), read(TOKENIZER, context), spec)


def slow_target(encoding: Encoding, start: int, end: int) -> tuple[int, int]:
    """Return the span by sets of characters, one character and one token at a time."""
    answer = set(range(start, end))
    characters = {
        token: set(range(*encoding.offsets[token].tolist()))
        for token in range(len(encoding))
        if encoding.sequence_ids[token] == 1
    }
    seen = set().union(*characters.values())
    hit = [token for token, held in characters.items() if held & answer]
    if not hit or min(seen) > min(answer) or max(seen) < max(answer):
        return 0, 0
    return min(hit), max(hit)


def spans(context: str) -> st.SearchStrategy[tuple[int, int]]:
    """Return any stretch of at least one character."""
    ends = st.integers(1, len(context))
    return ends.flatmap(lambda end: st.tuples(st.integers(0, end - 1), st.just(end)))


@given(data=st.data(), context=TEXTS.filter(bool) | st.sampled_from([t for t in ODD_TEXTS if t]))
def test_the_target_is_the_slow_obvious_one(data: st.DataObject, context: str) -> None:
    start, end = data.draw(spans(context))
    for window in windows("who went", context):
        assert qa.span_target(window.encoding, start, end) == slow_target(window.encoding, start, end)


@given(data=st.data(), max_tokens=st.integers(14, 60))
def test_the_target_gives_back_the_answer(data: st.DataObject, max_tokens: int) -> None:
    pieces = read(TOKENIZER, CONTEXT)
    first = data.draw(st.integers(0, len(pieces) - 1))
    last = data.draw(st.integers(first, len(pieces) - 1))
    start, end = int(pieces.offsets[first, 0]), int(pieces.offsets[last, 1])
    for window in windows("who?", CONTEXT, replace(SPEC, max_tokens=max_tokens)):
        found = qa.span_target(window.encoding, start, end)
        if window.start <= first and last < window.stop:
            offsets = window.encoding.offsets
            assert CONTEXT[offsets[found[0], 0] : offsets[found[1], 1]] == CONTEXT[start:end]
        else:
            assert found == (0, 0)


def test_an_answer_inside_a_piece_is_that_piece() -> None:
    window = windows("who?", "in London", replace(SPEC, max_tokens=40))[0]
    token = int(window.encoding.ids.tolist().index(TOKENIZER.token_to_id("london")))
    assert qa.span_target(window.encoding, 4, 6) == (token, token)


@pytest.mark.parametrize("answer", [" met ", "met ", " met", "\u200dmet\u200b"])
def test_characters_that_no_piece_has_do_not_lose_the_answer(answer: str) -> None:
    context = f"Ada{answer}Babbage"
    encoding = windows("who?", context, replace(SPEC, max_tokens=60))[0].encoding
    first, last = qa.span_target(encoding, 3, 3 + len(answer))
    assert context[encoding.offsets[first, 0] : encoding.offsets[last, 1]].strip("\u200d\u200b") == "met"


def test_the_question_is_never_the_answer() -> None:
    for window in windows("Ada Lovelace", CONTEXT):
        first, last = qa.span_target(window.encoding, 0, 12)
        assert (first, last) == (0, 0) or window.encoding.sequence_ids[first] == 1


def test_only_spaces_are_no_answer() -> None:
    assert qa.span_target(windows("who?", CONTEXT)[0].encoding, 16, 18) == (0, 0)


@given(question=TEXTS, context=TEXTS)
def test_a_question_over_its_limit_loses_its_end(question: str, context: str) -> None:
    asked = read(TOKENIZER, question)
    assume(len(asked))
    kept = asked.ids[: SPEC.max_question_tokens].tolist()
    for window in windows(question, context):
        ids = window.encoding.ids.tolist()
        assert ids[1 : 1 + len(kept)] == kept and ids[1 + len(kept)] == TOKENIZER.sep_id
        assert len(ids) <= SPEC.max_tokens


def test_an_empty_question_is_refused() -> None:
    for question in ("", "  ", "\x00"):
        with pytest.raises(InputError, match="the question is empty"):
            windows(question, CONTEXT)


def test_an_empty_paragraph_gives_one_window_without_an_answer() -> None:
    (window,) = windows("who?", "")
    assert (window.encoding.sequence_ids == 1).sum() == 0
    assert qa.span_target(window.encoding, 0, 1) == (0, 0)


def test_real_answers_are_found_in_real_paragraphs(packaged: Tokenizer, shared_data: Path) -> None:
    spec = TaskSpec("qa", max_tokens=128, stride=48)
    articles = json.loads((shared_data / "squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    for paragraph in [p for article in articles for p in article["paragraphs"][:4]]:
        asked, text = paragraph["qas"][0], paragraph["context"]
        answer, start = asked["answers"][0]["text"], asked["answers"][0]["answer_start"]
        question, context = packaged.pieces([asked["question"], text])
        encodings = [window.encoding for window in qa.encode(packaged, question, context, spec)]
        targets = [qa.span_target(encoding, start, start + len(answer)) for encoding in encodings]
        assert targets == [slow_target(encoding, start, start + len(answer)) for encoding in encodings]
        assert any(target != (0, 0) for target in targets)
