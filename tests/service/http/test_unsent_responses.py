"""Responses that clients do not read are bounded over all connections of a process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.http.limits import LARGEST_RESPONSES
from tests.support.live import Live, eventually, serving
from tests.support.ndjson import lines_of, post_lines

MAX_BYTES = 2**20
LARGE, SMALL = {"text": ["a"] * 400}, {"text": "a"}
"""A list whose vectors take some 180 KB, and a text."""
RANKED = {"text": ["a"] * 100, "candidates": ["a"] * 100}
"""A comparison of each with each, whose response takes up to 800 KB."""


@pytest.fixture(scope="module")
def bounded(bundles: object) -> Iterator[Live]:
    with serving(bundles=[f"{bundles}/meaning"], max_response_bytes=MAX_BYTES) as running:
        yield running


class Unread(asyncio.Transport):
    """A connection whose client has left so many bytes unread."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def get_write_buffer_size(self) -> int:
        return self.size


@contextmanager
def unread(live: Live, size: int) -> Iterator[None]:
    connection = Unread(size)
    live.service.unsent.transports.add(connection)
    try:
        yield
    finally:
        live.service.unsent.transports.discard(connection)


def test_a_large_response_is_refused_while_too_much_is_unread(bounded: Live) -> None:
    with unread(bounded, LARGEST_RESPONSES * MAX_BYTES):
        reply = bounded.post("/embed", LARGE)
        assert (reply.status, reply.json["type"]) == (503, "urn:bert-serve:responses-full")
        assert reply.headers["retry-after"] == "1"
        assert f"at most {LARGEST_RESPONSES * MAX_BYTES} may" in reply.json["detail"]
        assert bounded.post("/embed", SMALL).status == 200
        assert bounded.metric("bert_requests_rejected_total", reason="responses_full") == 1
    assert bounded.post("/embed", LARGE).status == 200


def test_a_large_ranking_is_refused_while_too_much_is_unread(bounded: Live) -> None:
    with unread(bounded, LARGEST_RESPONSES * MAX_BYTES):
        assert bounded.post("/similarity", RANKED).status == 503
    assert bounded.post("/similarity", RANKED).status == 200


def test_what_is_being_made_counts(bounded: Live) -> None:
    with bounded.service.unsent.room(LARGEST_RESPONSES * MAX_BYTES - 1000):
        assert bounded.post("/embed", LARGE).status == 503
    assert bounded.service.unsent.held() == 0


def test_a_line_with_a_large_response_waits_until_there_is_room(bounded: Live) -> None:
    answers = list[dict[str, object]]()
    with unread(bounded, LARGEST_RESPONSES * MAX_BYTES):
        asking = threading.Thread(
            target=lambda: answers.extend(post_lines(bounded, "/embed", lines_of(LARGE)))
        )
        asking.start()
        refused = bounded.metric("bert_requests_rejected_total", reason="responses_full")
        asking.join(0.5)
        assert asking.is_alive()
    asking.join(60)
    assert ["results" in answer for answer in answers] == [True]
    assert bounded.metric("bert_requests_rejected_total", reason="responses_full") == refused
    eventually(lambda: bounded.service.unsent.held() == 0)


def test_a_connection_counts_as_long_as_it_is_open(bounded: Live) -> None:
    eventually(lambda: not bounded.service.unsent.transports)
    connection = bounded.connect()
    connection.connect()
    eventually(lambda: len(bounded.service.unsent.transports) == 1)
    connection.close()
    eventually(lambda: not bounded.service.unsent.transports)
