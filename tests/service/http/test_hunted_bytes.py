"""Bytes that hypothesis makes up, sent to a real server: no 5xx, no connection that stays, no event loop held over 20 ms.

`make test` tries some hundred. For 100,000 of each kind, or HUNT_EXAMPLES of them:

    pytest tests/service/http/test_hunted_bytes.py tests/service/engine/test_hunted_files.py --hypothesis-profile=hunt
"""

import gzip
import json
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.live import Live, serving
from tests.support.loop_watch import ALLOWED, ATTEMPTS, calibrate, watching
from tests.support.odd_texts import TEXTS
from tests.support.wire import read_all, statuses

pytestmark = pytest.mark.slow

HEAD = "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/classify", {"text": ["the film was warm", "dull"], "top_k": 2}),
    ("/classify", {"text": "the film", "text_pair": ["a", "b"], "model": "entailment"}),
    ("/ner", {"text": "angela met merkel in munich", "aggregation": "simple", "min_score": 0.1}),
    ("/qa", {"question": "who met", "context": "angela met merkel", "top_k": 3}),
    ("/similarity", {"text": "a film", "candidates": ["dull", "funny"]}),
    ("/embed", {"text": ["a", "b"], "dimensions": 8, "encoding_format": "binary"}),
    ("/fill-mask", {"text": "the [MASK] was long", "targets": ["film"]}),
    ("/multiple-choice", {"prompt": "who", "choices": ["a", "b"]}),
    ("/tokenize", {"text": "angela merkel"}),
    ("/rerank", {"query": "film", "texts": ["a", "b"]}),
    ("/v1/embeddings", {"input": ["a film"], "model": "meaning", "encoding_format": "base64"}),
    ("/v2/rerank", {"query": "film", "documents": ["a", "b"], "top_n": 1}),
    ("/hf/mood", {"inputs": "a film", "parameters": {"top_k": 1}}),
    ("/tei/meaning", {"inputs": ["a film"], "truncate": True}),
    (
        "/v2/models/mood/infer",
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    ),
    ("/invocations", {"inputs": "a film", "parameters": {"model": "mood"}}),
]
GETS = [
    "/",
    "/status",
    "/models",
    "/health/ready?model=mood",
    "/openapi.json",
    "/v2/models/mood",
    "/tei/info",
]


def post(path: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    head = HEAD.format(method="POST", path=path, kind=kind) + "".join(f"{each}\r\n" for each in headers)
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(path: str, body: bytes) -> bytes:
    head = (
        HEAD.format(method="POST", path=path, kind="application/json") + "transfer-encoding: chunked\r\n\r\n"
    )
    parts = [body[at : at + 7] for at in range(0, len(body), 7)]
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


WHOLE = [post(path, json.dumps(body).encode()) for path, body in POSTS]
WHOLE += [chunked(path, json.dumps(body).encode()) for path, body in POSTS[:3]]
WHOLE += [
    post(path, gzip.compress(json.dumps(body).encode()), "content-encoding: gzip") for path, body in POSTS[:3]
]
WHOLE += [post("/ner", b'{"text": "a"}\n\n{"text": 3}\n', kind="application/x-ndjson")]
WHOLE += [HEAD.format(method="GET", path=path, kind="text/plain").encode() + b"\r\n" for path in GETS]
BITS = [
    *(b"\r\n", b"\n", b"\r", b"\0", b"\xff", b" ", b":", b"\r\n\r\n", b'"', b"\\", b"\\ud800", b"{", b"}", b"[" * 40, b"]"),
    *(b",", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 30, b'"text"', b'"model"', b'"a"' + b',"a"' * 600),
    *(b"content-length: 3\r\n", b"content-length: -1\r\n", b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n"),
    *(b"connection: close\r\n", b"upgrade: h2c\r\n", b"x-timeout-ms: 1\r\n", b"content-encoding: gzip\r\n", b"host: y\r\n"),
    *(b"HTTP/1.0", b"HTTP/2.0", b"CONNECT", b"HEAD", b"%00", b"/../", b"?model="),
    *(b"5\r\nhello\r\n", b"fffffffff\r\n", b"0\r\n\r\n"),
]  # fmt: skip
CHANGE = st.tuples(
    st.floats(0, 1), st.sampled_from([0, 0, 1, 5, 40]), st.sampled_from(BITS) | st.binary(max_size=4)
)
"""Where, how many bytes go, and what comes in their place."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from(["mood", "names", "a"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def hunted(bundles: Path) -> Iterator[Live]:
    limits: dict[str, Any] = {"body_timeout_ms": 300, "max_body_bytes": 2**17, "stream_timeout_ms": 5000}
    limits["keep_alive_s"] = (
        2  # a body may lack just so much that it takes the last request, all but its last line
    )
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


def answered(live: Live, sent: bytes) -> None:
    """Send bytes and then a last request; whatever they are, the connection ends, and nothing is the service's fault."""
    with socket.create_connection(live.connect_to(), timeout=60) as raw:
        raw.sendall(sent + LAST)
        received = read_all(raw)
    faults = [each for each in statuses(received) if each >= 500 and each not in (504, 505)]
    assert not faults, received


@cache
def allowed_s() -> float:
    """Return the longest that the event loop may be held."""
    return ALLOWED * calibrate()


def held_for_long(live: Live, sent: bytes) -> bool:
    for _ in range(ATTEMPTS):
        with watching(live) as watch:
            answered(live, sent)
        if watch.longest_s <= allowed_s():
            return False
    return True


@example(
    requests=[post("/ner", b"a" * (len(LAST) - 2), "content-encoding: gzip")[: 2 - len(LAST)]], changes=[]
)
@given(
    requests=st.lists(st.sampled_from(WHOLE), min_size=1, max_size=3), changes=st.lists(CHANGE, max_size=4)
)
def test_requests_that_were_changed_anywhere(
    hunted: Live, requests: list[bytes], changes: list[tuple[float, int, bytes]]
) -> None:
    sent = b"".join(requests)
    for place, gone, put in changes:
        at = int(place * len(sent))
        sent = sent[:at] + put + sent[at + gone :]
    assert not held_for_long(hunted, sent)


@given(path=st.sampled_from([path for path, _ in POSTS]), data=st.data())
def test_bodies_of_any_json(hunted: Live, path: str, data: st.DataObject) -> None:
    body = dict(next(body for each, body in POSTS if each == path))
    names = st.sampled_from([*body, *body, "model", "options", "parameters", "truncate"]) | TEXTS
    for name in data.draw(st.lists(names, max_size=3)):
        body[name] = data.draw(VALUES)
    sent = json.dumps(body, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass")
    assert not held_for_long(hunted, post(path, sent))


@given(sent=st.binary(max_size=400))
def test_bytes_that_are_no_http(hunted: Live, sent: bytes) -> None:
    assert not held_for_long(hunted, sent)
