"""Many requests at once get what each gets alone, and leave nothing behind."""

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service.live import Live, Reply, eventually
from tests.service.tiny import WORDS

REQUESTS = 200


def mixed_requests() -> list[tuple[str, dict[str, Any]]]:
    chance = random.Random(7)

    def text(longest: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, longest)))

    makers: list[Callable[[], tuple[str, dict[str, Any]]]] = [
        lambda: ("/classify", {"text": text(25)}),
        lambda: ("/classify", {"text": [text(20) for _ in range(8)], "model": "topics"}),
        lambda: ("/classify", {"text": text(9), "text_pair": [text(9), text(9)], "model": "entailment"}),
        lambda: ("/ner", {"text": text(300)}),
        lambda: ("/similarity", {"text": text(20), "candidates": [text(25) for _ in range(5)]}),
        lambda: ("/qa", {"question": text(8), "context": text(200), "top_k": 2}),
        lambda: ("/embed", {"text": text(25)}),
        lambda: ("/tokenize", {"text": text(25)}),
        lambda: ("/fill-mask", {"text": [f"{text(9)} [MASK] {text(9)} [MASK]" for _ in range(4)]}),
    ]
    return [chance.choice(makers)() for _ in range(REQUESTS)]


def same(one: Any, other: Any) -> bool:
    """Compare JSON values; numbers to 1e-4."""
    if isinstance(one, float) and isinstance(other, float | int):
        return one == pytest.approx(other, abs=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


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
