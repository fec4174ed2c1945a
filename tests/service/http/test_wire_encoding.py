"""Content-Encoding: gzip is read within the limits of other bodies, and nothing else is."""

import gzip
import json
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.http.request_body import gunzip
from tests.support.live import Live, eventually
from tests.support.problems import is_problem

SENT = {"text": "a film in munich"}
PLAIN = json.dumps(SENT).encode()
PACKED = gzip.compress(PLAIN)
MAX_BODY = 2**21


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZip "])
@pytest.mark.parametrize("path", ["/ner", "/tokenize"])
def test_a_gzipped_body_is_answered_as_a_plain_one(live: Live, coding: str, path: str) -> None:
    reply = live.post(path, PACKED, content_encoding=coding)
    assert (reply.status, reply.json) == (200, live.post(path, SENT).json)


def test_a_body_that_is_not_encoded_may_say_so(live: Live) -> None:
    assert live.post("/ner", PLAIN, content_encoding="identity").status == 200


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "compress", "gzip, gzip", "utf-8"])
def test_another_encoding_is_refused_with_the_one_that_is_known(live: Live, coding: str) -> None:
    reply = live.post("/ner", PACKED, content_encoding=coding)
    assert "gzip" in is_problem(reply, 415)["detail"]
    assert reply.headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PLAIN, "not valid gzip: Error"),
        (b"", "not valid gzip: the stream has no end; send one complete"),
        (PACKED[:-3], "not valid gzip: the stream has no end; send one complete"),
        (PACKED[:-8] + bytes(8), "not valid gzip: Error"),
        (PACKED + b"x", "not valid gzip: bytes follow"),
        (PACKED + PACKED, "not valid gzip: bytes follow"),
        (zlib.compress(PLAIN), "not valid gzip: Error"),
        (gzip.compress(PACKED), "UTF-8"),
    ],
    ids=["plain", "empty", "cut", "checksum", "more", "two", "zlib", "twice"],
)
def test_what_is_no_gzip_is_malformed(live: Live, data: bytes, reason: str) -> None:
    assert reason in is_problem(live.post("/ner", data, content_encoding="gzip"), 400)["detail"]


def test_what_expands_over_the_limit_is_too_large(live: Live) -> None:
    for size in (MAX_BODY + 1, 20 * MAX_BODY):
        reply = live.post("/ner", bomb(size), content_encoding="gzip")
        assert str(MAX_BODY) in is_problem(reply, 413)["detail"]
    fits = gzip.compress(PLAIN + b" " * (MAX_BODY - len(PLAIN)))
    assert live.post("/ner", fits, content_encoding="gzip").status == 200


def test_decompression_does_not_hold_other_requests(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes up to 100 ms, see test_event_loop.py."""
    answered = threading.Event()

    def slow(data: bytes, limit: int) -> bytes:
        assert answered.wait(120)
        return gunzip(data, limit)

    monkeypatch.setattr("service.http.request_body.gunzip", slow)
    with ThreadPoolExecutor(1) as pool:
        packed = pool.submit(live.post, "/ner", PACKED, content_encoding="gzip")
        eventually(lambda: live.metric("bert_requests_in_flight") == 1)
        assert live.get("/health/live").status == 200
        answered.set()
        assert packed.result().status == 200


def bomb(size: int) -> bytes:
    """Return so many spaces in a thousandth of their size."""
    packer, block = zlib.compressobj(wbits=31), b" " * 2**20
    parts = [packer.compress(block) for _ in range(size // len(block))]
    return b"".join([*parts, packer.compress(b" " * (size % len(block))), packer.flush()])
