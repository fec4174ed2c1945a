"""Requests that would be far more work than their bytes say: refused up front, over a real socket."""

import asyncio
import threading
import time

import pytest

from service.http.request_body import INLINE_BYTES, Model, parse
from service.pipeline.inputs import RequestContext, Texts
from service.pipeline.pipeline import HELPER_THREADS, BoundedTokenizer, Threads
from service.tasks.qa import question_windows
from tests.support.live import Live
from tests.support.problems import fields, is_problem


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/qa", {"question": ["who ?"] * 511, "context": "a " * 900_000}),
        ("/qa", {"question": ["who ?"] * 511, "context": "a " * 50_000}),
        ("/qa", {"question": ["who ?"] * 256, "context": ["a " * 3_000] * 256}),
        ("/ner", {"text": "!" * 500_000}),
        ("/ner", {"text": "a " * 130_000}),
        ("/tokenize", {"text": "!" * 500_000}),
        ("/tokenize", {"text": "!" * 20_000}),
        ("/tokenize", {"text": ["! " * 3_000] * 300}),
        ("/classify", {"text": "a " * 900_000}),
        ("/embed", {"text": "a " * 900_000}),
        ("/fill-mask", {"text": "[MASK]" * 250_000}),
        ("/fill-mask", {"text": "[MASK]" + "!" * 500_000}),
    ],
)
def test_more_work_than_the_queue_holds_is_refused_before_it_is_done(
    live: Live, path: str, body: dict[str, object]
) -> None:
    spent_s = []
    for _ in range(3):  # what is done is done each time; what a busy machine adds is not
        start = time.process_time()
        problem = is_problem(live.post(path, body), 413)
        spent_s.append(time.process_time() - start)  # the service is a thread of this process
        assert problem["type"] == "urn:bert-serve:request-too-large"
        if spent_s[-1] < 4:
            return
    pytest.fail(f"CPU seconds: {spent_s}")


def test_a_long_text_that_may_be_cut_is_cut(live: Live) -> None:
    reply = live.post("/classify", {"text": "a " * 900_000, "truncate": True})
    assert reply.status == 200
    assert reply.json["results"][0]["truncated"] is True
    assert reply.json["usage"]["tokens"] == 32


def test_tokenize_shows_a_long_text_whole(live: Live) -> None:
    text = "a film, " * 5_000
    reply = live.post("/tokenize", {"text": text})
    tokens = reply.json["results"][0]["tokens"]
    assert len(tokens) == reply.json["usage"]["tokens"] == 15_002
    assert all(text[t["start"] : t["end"]] == t["text"] for t in tokens if not t["special"])


def test_a_question_over_its_limit_is_told_which_limit(live: Live) -> None:
    message = fields(live.post("/qa", {"question": "who " * 30, "context": "a"}))["question"]
    assert "question has 30 tokens and may have 20 (max_question_tokens" in message


def test_work_past_its_deadline_is_not_begun(live: Live) -> None:
    reply = live.post("/tokenize", {"text": "a film, " * 40_000}, x_timeout_ms="1")
    is_problem(reply, 504)


def test_a_context_that_several_questions_share_is_tokenised_once(live: Live) -> None:
    model = live.loaded.registry.models["reader"]
    context = "angela merkel met in munich " * 20

    async def read(contexts: Texts) -> tuple[int, int]:
        call, threads = RequestContext("id", "/qa", time.monotonic(), 60_000), Threads(1, 10**6)
        reader = BoundedTokenizer(call, model.tokenizer, 10**6, threads)
        try:
            windows = await question_windows(reader, model, Texts("question", ["who"] * 3, True), contexts, 3)
        finally:
            await threads.close()
        return len(windows), reader.tokens

    for contexts in (Texts("context", [context], False), Texts("context", [context] * 3, True)):
        assert asyncio.run(read(contexts)) == (3, 100 + 3)


def test_a_body_that_waits_for_a_thread_past_its_deadline_is_never_parsed(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, gate = list[int](), threading.Event()

    def noting(model: type[Model], body: bytes, max_texts: int) -> Model:
        parsed.append(len(body))
        return parse(model, body, max_texts)

    monkeypatch.setattr("service.http.route.parse", noting)
    helpers = live.loaded.pipeline.threads._helpers
    busy = [helpers.submit(gate.wait, 120) for _ in range(HELPER_THREADS)]
    try:
        late = live.post("/tokenize", {"text": "a " * INLINE_BYTES}, x_timeout_ms="200")
        assert late.status == 504 and "200 ms" in late.json["detail"]
    finally:
        gate.set()
    assert all(each.result() for each in busy)
    assert live.post("/tokenize", {"text": "a " * (INLINE_BYTES // 2)}).status == 200
    assert len(parsed) == 1
