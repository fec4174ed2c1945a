"""Closed and open loops against servers that answer as told. No test looks at the clock."""

import asyncio
import itertools
import json
import math

import pytest

from benchmarks.serve.load.loops import (
    LATE_MS,
    SPARE_CONNECTIONS,
    closed_loop,
    due_times,
    open_loop,
    random_times,
    was_late,
)
from benchmarks.serve.load.wire import RefusedError, ask, ask_all, request_bytes
from tests.support.servers import http_server


def messages(url: str, count: int) -> list[list[bytes]]:
    return [[request_bytes(url, "/", {"number": number})] for number in range(count)]


async def fine(body: bytes) -> tuple[int, bytes]:
    return 200, body


async def busy(body: bytes) -> tuple[int, bytes]:
    return 503, b"busy"


def test_requests_are_due_at_a_constant_rate() -> None:
    assert due_times(4.0, 1.5) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert due_times(0.1, 1.0) == [0.0]
    with pytest.raises(ValueError, match="rate"):
        due_times(0.0, 1.0)


def test_random_requests_are_due_as_often_and_at_no_regular_times() -> None:
    due_s = random_times(100.0, 30.0)
    steps = [after - before for before, after in itertools.pairwise(due_s)]
    assert len(due_s) == 3000 and due_s == sorted(due_s) == random_times(100.0, 30.0)
    assert due_s[-1] == pytest.approx(30.0, rel=0.1)
    # A third of the steps of a Poisson process are longer than the mean one.
    assert sum(step > 0.01 for step in steps) == pytest.approx(3000 / math.e, rel=0.1)


def test_the_client_was_late_when_more_than_one_in_a_hundred_was() -> None:
    late, in_time = 2 * LATE_MS, LATE_MS
    assert not was_late([in_time] * 100)
    assert not was_late([in_time] * 99 + [late])
    assert was_late([in_time] * 98 + [late] * 2)


def test_every_request_that_is_due_is_sent_and_answered() -> None:
    seen = list[int]()

    async def noting(body: bytes) -> tuple[int, bytes]:
        seen.append(json.loads(body)["number"])
        return 200, body

    with http_server(noting) as url:
        load = open_loop(url, messages(url, 7), rate=200.0, seconds=0.2)
    assert sorted(seen) == sorted(number % 7 for number in range(40))
    assert len(load.latencies_ms) == len(load.lateness_ms) == 40
    assert load.failures == 0 and load.latencies_ms == sorted(load.latencies_ms)


def test_no_request_waits_for_a_free_connection() -> None:
    count, arrived, go = 3 * SPARE_CONNECTIONS, list[bytes](), asyncio.Event()

    async def when_all_are_there(body: bytes) -> tuple[int, bytes]:
        arrived.append(body)
        if len(arrived) == count:
            go.set()
        await go.wait()  # for ever, if the client waited for an answer before it sends the last one
        return 200, body

    with http_server(when_all_are_there) as url:
        load = open_loop(url, messages(url, count), rate=count * 10.0, seconds=0.1, patience_s=30)
    assert load.failures == 0 and len(load.latencies_ms) == count
    assert load.connections == count


def test_a_latency_counts_from_the_moment_a_request_was_due() -> None:
    go = asyncio.Event()
    held = list[bytes]()

    async def stalled(body: bytes) -> tuple[int, bytes]:
        held.append(body)
        if len(held) == 20:
            go.set()
        await go.wait()
        return 200, body

    with http_server(stalled) as url:
        load = open_loop(url, messages(url, 20), rate=100.0, seconds=0.2)
    # All are answered when the last one, due after 190 ms, has come: request i has waited at least 190 - 10 i ms.
    assert all(ms >= 10 * number for number, ms in enumerate(load.latencies_ms))


def test_refusals_and_answers_that_do_not_come_are_failures() -> None:
    async def never(body: bytes) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        return 200, body

    for respond in (busy, never):
        with http_server(respond) as url:
            load = open_loop(url, messages(url, 3), rate=100.0, seconds=0.05, patience_s=0.2)
        assert load.failures == len(load.latencies_ms) == 5


def test_a_closed_loop_has_as_many_requests_under_way_as_connections() -> None:
    running, most = 0, 0

    async def counting(body: bytes) -> tuple[int, bytes]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 200, body

    with http_server(counting) as url:
        load = closed_loop(url, messages(url, 5), connections=3, seconds=0.1)
    assert most == 3 and load.connections == 3 and len(load.latencies_ms) >= 3


def test_messages_of_one_request_go_at_once_and_count_once() -> None:
    together, all_there = list[bytes](), asyncio.Event()

    async def as_a_group(body: bytes) -> tuple[int, bytes]:
        together.append(body)
        if len(together) >= 4:
            all_there.set()
        await all_there.wait()
        return 200, body

    with http_server(as_a_group) as url:
        request = [message for (message,) in messages(url, 4)]
        load = closed_loop(url, [request], connections=1, seconds=0.05)
    assert len(together) == 4 * len(load.latencies_ms)


def test_a_closed_loop_stops_at_a_refusal() -> None:
    with http_server(busy) as url, pytest.raises(RefusedError, match="503 x: busy"):
        closed_loop(url, messages(url, 1), connections=1, seconds=1.0)


def test_one_question_gets_its_json() -> None:
    with http_server(fine) as url:
        assert ask(url, request_bytes(url, "/", {"a": "ä"})) == {"a": "ä"}


def test_questions_that_go_together_keep_their_order() -> None:
    with http_server(fine) as url:
        found = ask_all(url, [message for (message,) in messages(url, 20)])
    assert found == [{"number": number} for number in range(20)]
