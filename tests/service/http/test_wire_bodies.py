"""Bodies that are wrong in large or odd ways: refused at once, in a few lines, with the right reason."""

import json
import time

import pytest

from bert.errors import MAX_FIELD_ERRORS, MAX_NAME_CHARACTERS
from tests.support.live import Live
from tests.support.problems import fields, is_problem

TASKS = ("/classify", "/ner", "/similarity", "/qa", "/embed", "/multiple-choice", "/fill-mask", "/tokenize")


@pytest.mark.parametrize(
    "body",
    [
        {"text": [1] * 900_000},
        {"text": [[]] * 400_000},
        {"text": ["a"] * 400_000},
        {f"{i:x}": 1 for i in range(150_000)},
        {"text": {f"{i:x}": 1 for i in range(150_000)}},
        {"text": "a", "model": [1] * 900_000},
        {"text": "a", "text_pair": [None] * 200_000, "candidates": [0] * 200_000},
    ],
    ids=["numbers", "lists", "texts", "keys", "keys inside", "in another field", "in several fields"],
)
def test_a_body_of_many_faults_is_refused_at_once_and_in_a_few_lines(
    live: Live, body: dict[str, object]
) -> None:
    data = json.dumps(body, separators=(",", ":")).encode()
    assert len(data) < 2**21
    start = time.process_time()
    for path in ("/classify", "/qa"):
        reply = live.post(path, data)
        assert len(is_problem(reply, 422)["errors"]) <= MAX_FIELD_ERRORS
        assert len(reply.body) < 10_000
    assert time.process_time() - start < 3  # the service is a thread of this process


def test_faults_within_the_number_of_texts_are_named_up_to_a_limit(live: Live) -> None:
    found = fields(live.post("/ner", {"text": ["a", *[1] * 500]}))
    assert list(found) == [f"text[{i}]" for i in range(1, MAX_FIELD_ERRORS + 1)]


@pytest.mark.parametrize("path", TASKS)
@pytest.mark.parametrize("depth", [150, 250, 500, 5_000])
@pytest.mark.parametrize(("opens", "closes"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_nested_deep_is_refused_as_such(
    live: Live, path: str, depth: int, opens: bytes, closes: bytes
) -> None:
    reply = live.post(path, b'{"text": ' + opens * depth + b"1" + closes * depth + b"}")
    is_problem(reply, 422 if depth < 200 else 400)
    assert b"surrogate" not in reply.body
    assert (b"nested too deep" in reply.body) == (depth > 200)


def test_a_byte_order_mark_before_utf_8_is_read_over(live: Live) -> None:
    assert live.post("/ner", b"\xef\xbb\xbf" + b'{"text": "angela"}').status == 200


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_another_encoding_than_utf_8_is_malformed(live: Live, encoding: str) -> None:
    reply = live.post("/ner", '{"text": "caf\u00e9"}'.encode(encoding))
    assert "surrogate" not in is_problem(reply, 400)["detail"]


def test_many_halves_of_surrogate_pairs_are_named_up_to_a_limit(live: Live) -> None:
    assert len(fields(live.post("/ner", b'{"text": [' + b'"\\ud800",' * 1000 + b'"a"]}'))) == MAX_FIELD_ERRORS
    assert fields(live.post("/ner", b'{"\\ud800": "\\ud800"}'))
    assert "text.a[0]" in fields(live.post("/ner", b'{"text": {"a": ["\\ud800"]}}'))


def test_of_long_names_only_the_beginning_is_shown(live: Live) -> None:
    (name,) = (n for n in fields(live.post("/ner", {"text": "a", "x" * 100_000: 1})) if n != "text")
    assert len(name) == MAX_NAME_CHARACTERS
    reply = live.post("/ner", {"text": "a", "model": "y" * 5000})
    assert len(is_problem(reply, 404)["detail"]) < 300
