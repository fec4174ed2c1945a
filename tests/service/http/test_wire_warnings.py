"""Warnings of an answer: texts of which the tokenizer does not know most pieces."""

import json
from typing import Any

import pytest

from tests.support.live import Live

UNKNOWN = "🦜 ꙮ 🦚 film"
"""Four pieces, three of them unknown."""
MESSAGE = "the tokenizer does not know 3 of 4 pieces ([UNK]), so the model reads little of this text"


def warned(live: Live, path: str, **body: object) -> Any:
    reply = live.post(path, body)
    assert reply.status == 200, reply.body
    return reply.json.get("warnings")


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/classify", {"text": UNKNOWN}, ["text"]),
        ("/classify", {"text": ["a film", UNKNOWN], "windows": "max"}, ["text[1]"]),
        (
            "/classify",
            {"text": "a film", "text_pair": ["a", UNKNOWN], "model": "entailment"},
            ["text_pair[1]"],
        ),
        ("/ner", {"text": UNKNOWN}, ["text"]),
        ("/qa", {"question": UNKNOWN, "context": ["a film", UNKNOWN]}, ["question", "context[1]"]),
        ("/embed", {"text": [UNKNOWN, UNKNOWN * 50], "truncate": True}, ["text[0]", "text[1]"]),
        ("/similarity", {"text": "a film", "candidates": ["a", UNKNOWN]}, ["candidates[1]"]),
        ("/rerank", {"query": UNKNOWN, "candidates": ["a", UNKNOWN]}, ["query", "candidates[1]"]),
        ("/multiple-choice", {"prompt": "a film", "choices": ["a", UNKNOWN]}, ["choices[1]"]),
        ("/multiple-choice", {"prompt": "a", "choices": [["a", "it"], ["it", UNKNOWN]]}, ["choices[1][1]"]),
        ("/fill-mask", {"text": f"🦜 {UNKNOWN} [MASK]"}, ["text"]),
        ("/tokenize", {"text": ["a film", UNKNOWN]}, ["text[1]"]),
    ],
)
def test_a_text_of_mostly_unknown_pieces_is_named(
    live: Live, path: str, body: dict[str, Any], fields: list[str]
) -> None:
    assert [each["field"] for each in warned(live, path, **body)] == fields


def test_a_warning_says_how_many_pieces_are_unknown(live: Live) -> None:
    assert warned(live, "/classify", text=UNKNOWN) == [{"field": "text", "message": MESSAGE}]


@pytest.mark.parametrize(
    "text", ["a warm film", "🦜 film", "", "🦜 a film it"], ids=["none", "half", "empty", "few"]
)
def test_an_answer_without_warnings_does_not_mention_them(live: Live, text: str) -> None:
    assert "warnings" not in live.post("/classify", {"text": text}).json


def test_of_many_texts_twenty_are_named(live: Live) -> None:
    found = warned(live, "/ner", text=["a film", *[UNKNOWN] * 30])
    assert [each["field"] for each in found] == [f"text[{i}]" for i in range(1, 21)]
    texts = [f"{UNKNOWN} {number}" for number in range(15)]
    assert len(warned(live, "/qa", question=texts, context=texts)) == 20


def test_each_line_has_its_own_warnings(live: Live) -> None:
    lines = [{"text": text} for text in ("a film", UNKNOWN, "a film")]
    body = "\n".join(map(json.dumps, lines)).encode()
    reply = live.post("/classify", body, content_type="application/x-ndjson")
    assert ["warnings" in json.loads(line) for line in reply.body.splitlines()] == [False, True, False]
