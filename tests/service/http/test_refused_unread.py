"""While the queue is full, requests are refused by their size: unread, and before they are tokenised."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bert.tokenizer import Tokenizer
from tests.support.live import Live, Reply, eventually, serving
from tests.support.slow import gated
from tests.support.wire import head_of

pytestmark = pytest.mark.slow
QUEUE = 600
LARGE = {"text": ["the film was warm and funny " * 4] * 8}
HUGE_BYTES = 1_000_000
TOKENS_PER_S = 50.0
"""What the queue is told of the engine's speed, so that its bound and not the deadline refuses, for 2.5 s."""


@pytest.fixture(scope="module")
def small(bundles: Path) -> Iterator[Live]:
    limits: dict[str, Any] = {"max_queue_tokens": QUEUE, "engine_slots": 1, "batch_tokens": 128}
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


@contextmanager
def full(live: Live, model: str = "names", path: str = "/ner", body: object = LARGE) -> Iterator[None]:
    """Fill the queue of a model, so that it has refused such a request, and will; for that, no time passes meanwhile."""
    early = live.loaded.pipeline.early_refusal
    early._refusals.clear()  # what another test's queue said
    clock, now = early._clock, early._clock()
    queue, waiting = live.scheduler.queue, list[Future[Reply]]()
    with ThreadPoolExecutor(3) as pool, gated(live, model):
        queue.throughput[live.loaded.registry.models[model].id].tokens_per_s = TOKENS_PER_S

        def waits(tokens: int) -> bool:
            return queue.tokens == tokens

        for tokens in (104, 312, 520):  # of the first, a batch is in the engine
            waiting.append(pool.submit(live.post, path, body))
            eventually(partial(waits, tokens))
        early._clock = lambda: now
        assert live.post(path, body).status == 429
        yield
        early._clock = clock
    assert {each.result().status for each in waiting} == {200}


def only_head(
    live: Live, path: str, *headers: str, size: int = HUGE_BYTES, wait_s: float = 0.5
) -> tuple[int, dict[str, str]]:
    """Send the head of a request and none of its body; return the status, 0 if none comes, and the headers."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {size}"]
    with socket.create_connection(live.connect_to()) as raw:
        raw.settimeout(wait_s)
        raw.sendall("\r\n".join([*lines, *headers, "", ""]).encode())
        try:
            received = raw.recv(65536)
        except TimeoutError:
            return 0, {}
        return int(received[9:12]), head_of(received)[0]


@pytest.mark.parametrize("path", ["/ner", "/hf/names", "/tei/names", "/v2/models/names/infer"])
def test_a_body_that_would_be_refused_is_not_waited_for(small: Live, path: str) -> None:
    with full(small):
        before = small.metric("bert_requests_rejected_total", reason="queue_full")
        status, headers = only_head(small, path, wait_s=60)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert small.metric("bert_requests_rejected_total", reason="queue_full") == before + 1
    eventually(lambda: only_head(small, path)[0] == 0)  # it is awaited again


def test_what_the_full_queue_does_not_concern_is_read(small: Live) -> None:
    with ThreadPoolExecutor(1) as pool, full(small):
        for path in ("/tokenize", "/tei/names/tokenize", "/classify", "/hf/mood"):
            assert only_head(small, path)[0] == 0
        assert only_head(small, "/ner", "content-encoding: gzip")[0] == 0
        assert small.post("/tokenize", {"text": "angela " * 500, "model": "names"}).status == 200
        tokens = small.scheduler.queue.tokens
        short = pool.submit(small.post, "/ner", {"text": "angela"})
        eventually(lambda: small.scheduler.queue.tokens > tokens)
    assert short.result().status == 200


def test_of_several_models_the_body_says_which_is_asked_and_it_is_not_tokenised(
    small: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "meaning", "input": LARGE["text"]}
    with full(small, "meaning", "/v1/embeddings", body):
        assert only_head(small, "/v1/embeddings")[0] == 0
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "pieces", None)
            assert small.post("/v1/embeddings", body).status == 429


def test_lines_wait_until_there_is_room(small: Live) -> None:
    lines = b"\n".join(json.dumps(LARGE).encode() for _ in range(3))
    with ThreadPoolExecutor(1) as pool:
        with full(small):
            answer = pool.submit(small.post, "/ner", lines, content_type="application/x-ndjson")
            assert not answer.done()
        assert [len(json.loads(line)["results"]) for line in answer.result().body.splitlines()] == [8] * 3


def test_huge_bodies_are_answered_by_a_service_with_nothing_to_do(bundles: Path) -> None:
    with serving(bundles=[bundles / "names"], max_queue_tokens=2_000_000) as live:
        body = {"text": "the film was warm and funny and long and dull " * 4_000}
        assert live.post("/ner", {"text": "angela"}).status == 200
        assert [live.post("/ner", body).status for _ in range(4)] == [200] * 4
