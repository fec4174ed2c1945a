"""Many requests at once get what each gets alone, and leave nothing behind."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.live import Live, Reply, eventually
from tests.support.mixed_requests import mixed_requests, same


def test_two_hundred_requests_at_once_get_what_each_gets_alone(live: Live) -> None:
    requests = mixed_requests()
    alone = [live.post(path, body) for path, body in requests]
    together = at_once(live, requests)
    for request, one, other in zip(requests, alone, together, strict=True):
        assert one.status == other.status == 200, (request, one.body, other.body)
        assert same(one.json, other.json), request
    is_idle(live)


def at_once(live: Live, requests: list[tuple[str, dict[str, Any]]]) -> list[Reply]:
    start = threading.Barrier(50)

    def send(numbered: tuple[int, tuple[str, dict[str, Any]]]) -> Reply:
        number, (path, body) = numbered
        if number < 50:
            start.wait(20)
        return live.post(path, body)

    with ThreadPoolExecutor(50) as pool:
        return list(pool.map(send, enumerate(requests)))


def test_clients_that_leave_at_any_moment_leave_nothing_behind(live: Live) -> None:
    chance = random.Random(3)
    for path, body in mixed_requests()[:60]:
        data = json.dumps(body).encode()
        connection = live.connect()
        connection.request("POST", path, data, {"content-type": "application/json"})
        if chance.random() < 0.3:
            connection.getresponse().read(10)
        connection.close()
    is_idle(live)
    assert live.post("/classify", {"text": "a film"}).status == 200


def is_idle(live: Live) -> None:
    for gauge in ("bert_requests_in_flight", "bert_queue_tokens", "bert_queue_texts"):
        eventually(lambda gauge=gauge: live.metric(gauge) == 0)  # type: ignore[misc]
