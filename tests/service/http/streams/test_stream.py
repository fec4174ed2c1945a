"""Requests of many lines over a real socket: what each line gets, and in which order."""

import gzip
import json
import random
import socket
from pathlib import Path

import pytest

from tests.support.endpoints import TASK_ENDPOINTS, TaskEndpoint
from tests.support.live import Live, serving
from tests.support.ndjson import TYPE, answered, kinds, lines_of, opened, post_lines, rounded
from tests.support.problems import TEXT, kind, rejected

GOOD = {"text": "a film"}


@pytest.mark.parametrize("endpoint", TASK_ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_each_line_gets_the_response_of_its_request(live: Live, endpoint: TaskEndpoint) -> None:
    body = {name: value for name, value in endpoint.sent.items() if name != "model"}
    alone = live.post(endpoint.path, body).json
    assert rounded(post_lines(live, endpoint.path, lines_of(body, body))) == rounded([alone, alone])


def test_responses_come_in_the_order_of_the_lines(live: Live) -> None:
    """Lines of one text, of many and of long ones take unlike times."""
    words = ("film", "warm", "funny", "dull", "munich", "paris")
    texts = [" ".join(words[(i * j) % 6] for j in range(i % 9 + 1)) for i in range(600)]
    requests = [
        {"text": [text] * 200 if i % 50 == 0 else text, "model": "topics"} for i, text in enumerate(texts)
    ]
    found = post_lines(live, "/classify", lines_of(*requests))
    assert [len(each["results"]) for each in found] == [200 if i % 50 == 0 else 1 for i in range(600)]
    for i in range(0, 600, 37):
        assert rounded(found[i]) == rounded(live.post("/classify", requests[i]).json)


def test_a_line_that_is_wrong_gets_its_problem_and_no_other_line_does(live: Live) -> None:
    body = lines_of(
        GOOD, {"text": 1}, b"no json", {**GOOD, "model": "none"}, b'{"text": "\\ud800"}', b"\xff", GOOD
    )
    found = post_lines(live, "/classify", body, x_request_id="mine")
    assert kinds(found) == [
        (2, "invalid-request"),
        (3, "malformed-json"),
        (4, "unknown-model"),
        (5, "invalid-request"),
        (6, "malformed-json"),
    ]
    assert "results" in found[0] and "results" in found[6]
    assert found[1]["errors"] == [{"field": "text", "message": "must be a string or a list of strings"}]
    assert {each["request_id"] for each in found[1:6]} == {"mine"}


def test_lines_may_end_in_many_ways_and_blank_ones_are_skipped_but_counted(live: Live) -> None:
    body = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n\n{"text": "a"}\n{"text": 1}'
    found = post_lines(live, "/ner", body)
    assert [("results" in each) for each in found] == [True, True, False]
    assert kinds(found) == [(6, "invalid-request")]


def test_no_line_is_no_response(live: Live) -> None:
    assert post_lines(live, "/ner", b"") == []
    assert post_lines(live, "/ner", b"\n\r\n") == []


@pytest.mark.parametrize(
    "media_type", ["application/jsonl", "application/jsonlines", "Application/X-NDJSON; charset=utf-8"]
)
def test_other_names_of_the_type_are_known(live: Live, media_type: str) -> None:
    reply = live.post("/ner", lines_of(GOOD), content_type=media_type)
    assert (reply.status, reply.headers["content-type"]) == (200, TYPE)


def test_a_response_names_its_request(live: Live) -> None:
    reply = live.post("/ner", lines_of(GOOD), content_type=TYPE, x_request_id="mine")
    assert reply.headers["x-request-id"] == "mine"
    assert reply.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in reply.headers


def test_a_line_is_answered_before_the_next_is_sent(live: Live) -> None:
    with opened(live, "/ner") as request:
        for text in ("angela", "merkel", "munich"):
            request.send(lines_of({"text": text}))
            assert request.line() == live.post("/ner", {"text": text}).json
        request.end()
        assert request.rest() == []


def test_a_line_may_come_in_any_parts(live: Live) -> None:
    body = lines_of(*[{"text": f"a film {i}"} for i in range(20)])
    whole = post_lines(live, "/classify", body)
    with opened(live, "/classify") as request:
        for i in range(0, len(body), 7):
            request.send(body[i : i + 7])
        request.end()
        assert rounded(request.rest()) == rounded(whole)


def test_a_compressed_body_is_read(live: Live) -> None:
    body = lines_of(*[{"text": f"a film {i}"} for i in range(3000)])
    found = answered(
        live.post("/tokenize", gzip.compress(body), content_type=TYPE, content_encoding="gzip").body
    )
    assert len(found) == 3000
    assert found[1234] == live.post("/tokenize", {"text": "a film 1234"}).json


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda data: data[:-9], "no end"),
        (lambda data: data + b"x", "follow"),
        (lambda data: data[:20] + b"x" * 30, ""),
    ],
)
def test_a_body_that_is_not_gzip_says_so_after_the_lines_that_could_be_read(
    live: Live, change: object, found: str
) -> None:
    assert callable(change)
    data = change(gzip.compress(lines_of(*[GOOD] * 2_000 + [b""] * 400_000)))
    reply = live.post("/tokenize", data, content_type=TYPE, content_encoding="gzip")
    if reply.status == 200:
        last = answered(reply.body)[-1]
        assert last["line"] == len(reply.body.splitlines())
    else:
        last = reply.json
    assert (last["status"], last["type"]) == (400, "urn:bert-serve:malformed-json")
    assert found in last["detail"]


def test_half_a_line_before_an_error_is_not_answered_but_named(live: Live) -> None:
    data = gzip.compress(lines_of(GOOD, GOOD) + b'{"text": "half')
    reply = live.post("/classify", data[:-8], content_type=TYPE, content_encoding="gzip")
    found = answered(reply.body)
    assert ["results" in each for each in found] == [True, True, False]
    assert kinds(found) == [(3, "malformed-json")]
    with opened(live, "/classify") as request:
        request.send(lines_of(GOOD) + b'{"text": "half')
        request.connection.send(b"no chunk\r\n")
        assert kinds(request.rest()) == [(2, "malformed-http")]


def test_http_1_0_gets_no_lines(live: Live) -> None:
    """Its response could have no chunks (RFC 9112, 6.1), so none would show that it is whole."""
    body = lines_of(GOOD)
    head = b"POST /classify HTTP/1.0\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(head % (TYPE.encode(), len(body)) + body)
        received = b""
        while data := raw.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 505 ")
    assert b"transfer-encoding" not in received.lower()
    assert b"urn:bert-serve:http-version" in received


def test_what_is_wrong_with_the_request_itself_is_an_ordinary_problem(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], api_key="correct-horse") as live:
        reply = live.post("/classify", lines_of(GOOD), content_type=TYPE)
        assert (reply.status, kind(reply)) == (401, "unauthorized")
        key = {"x_api_key": "correct-horse", "content_type": TYPE}
        reply = live.post("/classify", lines_of(GOOD), content_encoding="br", **key)
        assert (reply.status, kind(reply)) == (415, "unsupported-media-type")
        reply = live.post("/classify", lines_of(GOOD), x_timeout_ms="soon", **key)
        assert (reply.status, kind(reply)) == (422, "invalid-request")
        reply = live.post("/classify", lines_of(GOOD), **key)
        assert "results" in reply.json


def test_other_servers_wires_take_no_lines(live: Live) -> None:
    for path in ("/v1/embeddings", "/v1/rerank", "/tei/meaning/embed"):
        assert live.post(path, lines_of({"input": "a"}), content_type=TYPE).status == 415


def test_rerank_knows_the_form_of_each_line(live: Live) -> None:
    mine = {"query": "a film", "candidates": ["a", "film"]}
    theirs = {"query": "a film", "documents": ["a", "film"]}
    found = post_lines(live, "/rerank", lines_of(mine, theirs, {**theirs, "query": 1}), x_request_id="mine")
    assert "results" in found[0]
    assert "relevance_score" in found[1]["results"][0]
    assert found[1]["id"] == "mine"
    assert (found[2]["line"], found[2]["error"]["code"]) == (3, 400)


def test_each_line_counts_as_a_request_and_the_stream_does_not(live: Live) -> None:
    def count(name: str, **labels: str) -> float:
        return live.settled_metric(name, **labels)

    ok = {"endpoint": "/classify", "model": "mood", "status": "200"}
    wrong = {"endpoint": "/classify", "status": "422"}
    names = ("bert_request_duration_seconds_count",)
    before = [count(names[0], **ok), count(names[0], **wrong), count("bert_tokens_total", model="mood")]
    total = live.settled_metric("bert_request_duration_seconds_count", endpoint="/classify")
    found = post_lines(live, "/classify", lines_of(TEXT, {"text": 1}, TEXT))
    after = [count(names[0], **ok), count(names[0], **wrong), count("bert_tokens_total", model="mood")]
    tokens = 2 * found[0]["usage"]["tokens"]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 1, tokens]
    assert live.metric("bert_request_duration_seconds_count", endpoint="/classify") == total + 3


def test_a_line_that_is_too_long_is_left_out(live: Live) -> None:
    long = b'{"text": "' + b"a" * 2**21 + b'"}'
    before = rejected(live, "too_large")
    found = post_lines(live, "/classify", lines_of(GOOD, long, GOOD) + long)
    assert ["results" in each for each in found] == [True, False, True, False]
    assert kinds(found) == [(2, "body-too-large"), (4, "body-too-large")]
    assert rejected(live, "too_large") == before + 2


def test_the_body_may_be_larger_than_one_requests(live: Live) -> None:
    """Half-duplex, as requests and http.client send: 6 MB go up before a byte is read."""
    body = lines_of(*[json.dumps({"text": f"a film {i}"}).encode() + b" " * 1_200 for i in range(5_000)])
    assert len(body) > 2 * live.service.settings.max_body_bytes
    found = post_lines(live, "/tokenize", body)
    assert len(found) == 5_000
    assert not kinds(found)
    assert found[-1] == live.post("/tokenize", {"text": "a film 4999"}).json


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_blank_lines_in_a_row_count_like_a_line_and_end_the_request_past_its_limit(
    live: Live, coding: str
) -> None:
    """3 MB of blank lines, of which gzip makes 3 KB."""
    body, before = lines_of(GOOD) + b"\n" * 3_000_000 + lines_of(GOOD), rejected(live, "too_large")
    data = gzip.compress(body) if coding == "gzip" else body
    reply = live.post("/classify", data, content_type=TYPE, content_encoding=coding)
    found = answered(reply.body)
    assert ["results" in each for each in found] == [True, False]
    assert kinds(found) == [(2, "body-too-large")]
    assert "over 2097152 bytes of blank lines follow one another (max_body_bytes)" in found[1]["detail"]
    assert rejected(live, "too_large") == before + 1


def test_blank_lines_between_lines_are_no_reason_to_end(live: Live) -> None:
    body = (lines_of(GOOD) + b"\n" * 1_500_000) * 6
    found = post_lines(live, "/tokenize", body)
    assert (len(found), kinds(found)) == (6, [])


def test_a_compressed_body_may_expand_far_but_not_without_a_bound(live: Live) -> None:
    """30 MB out of 30 KB are refused; 20 MB out of 300 KB are not."""
    data = gzip.compress(b'{"text": "' + b"a" * 30_000_000 + b'"}\n' + lines_of(GOOD))
    reply = live.post("/classify", data, content_type=TYPE, content_encoding="gzip")
    assert (reply.status, kind(reply)) == (413, "body-too-large")
    assert "expands to over 100 times its size" in reply.json["detail"]
    line = b'{"text": "a film"} ' + bytes(random.Random(1).choices(b"\t\r ", k=10_000)) + b"\n"
    data = gzip.compress(line * 2_000)
    assert len(line) * 2_000 / len(data) > 50
    found = answered(live.post("/tokenize", data, content_type=TYPE, content_encoding="gzip").body)
    assert (len(found), kinds(found)) == (2_000, [])


def test_a_response_that_is_a_file_is_no_line(live: Live) -> None:
    found = post_lines(live, "/embed", lines_of(GOOD, {**GOOD, "encoding_format": "npy"}))
    assert kinds(found) == [(2, "invalid-request")]
