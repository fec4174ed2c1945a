"""What the client does where the service is overloaded, away, slow or something else."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from bert_client import (
    BertError,
    DeadlineExceededError,
    InvalidResponseError,
    ModelLeftOutError,
    NotReadyError,
    OverloadedError,
    ProblemError,
    RequestTimeoutError,
    UnauthorizedError,
    UnreachableError,
)
from tests.client.conftest import MakeClient
from tests.support.live import eventually, serving
from tests.support.process import address, started
from tests.support.scripted import Scripted, scripted
from tests.support.slow import gated

RESULT = {"label": "positive", "score": 1.0, "scores": [], "truncated": False}
GOOD = Scripted(body={"model": "mood", "results": [RESULT], "usage": {"tokens": 3}})
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1>nginx</body></html>"


def problem(status: int, name: str, **headers: str) -> Scripted:
    body = {
        "type": f"urn:bert-serve:{name}",
        "title": "x",
        "status": status,
        "detail": "why",
        "request_id": "7",
    }
    return Scripted(status, body, {key.replace("_", "-"): value for key, value in headers.items()})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_an_overloaded_service_is_asked_again_when_it_said(
    make: MakeClient, bundles: Path, pool: ThreadPoolExecutor
) -> None:
    with (
        serving(bundles=[bundles / "mood"], max_queue_tokens=512, engine_slots=1) as small,
        gated(small, "mood") as engine,
    ):
        running = pool.submit(small.post, "/classify", {"text": "a film"})
        eventually(lambda: engine.batches == 1)
        texts = ["a film in munich " * 6] * 5
        waiting = [pool.submit(small.post, "/classify", {"text": texts}) for _ in range(3)]
        eventually(lambda: small.metric("bert_queue_texts") == 15)
        with pytest.raises(OverloadedError, match=r"are waiting.*\(429, request id \w+\)") as refused:
            make(small.url, max_retries=0).classify(texts)
        assert refused.value.retry_after is not None and refused.value.retry_after >= 1
        assert refused.value.type == "urn:bert-serve:queue-full"
        patient = pool.submit(make(small.url).classify, texts)
        eventually(lambda: small.metric("bert_requests_rejected_total", reason="queue_full") == 2)
        engine.gate.set()
        assert len(patient.result(120)) == 5
        assert [future.result(120).status for future in (running, *waiting)] == [200] * 4


def test_retry_after_is_kept_in_seconds_and_as_a_date(make: MakeClient) -> None:
    date = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    began, date_s = time.monotonic(), date.timestamp() - time.time()
    when = format_datetime(date, usegmt=True)
    with scripted(
        problem(429, "queue-full", retry_after="1"), problem(503, "not-ready", retry_after=when), GOOD
    ) as script:
        assert make(script.url).classify("a").label == "positive"
        first, second, third = (came for came, _, _ in script.requests)
        assert second - first >= 1 and third - began >= date_s - 0.01
        assert third - began < 30, "of the minute that it has"


def test_a_wait_beyond_the_timeout_is_not_begun(make: MakeClient) -> None:
    with scripted(problem(429, "queue-full", retry_after="300")) as script:
        started_at = time.monotonic()
        with pytest.raises(OverloadedError) as refused:
            make(script.url, timeout=60).classify("a")
        assert time.monotonic() - started_at < 30
        assert (refused.value.retry_after, refused.value.attempts, len(script.requests)) == (300, 1, 1)


@pytest.mark.parametrize("kind", ["503", "502 of a proxy", "cut answer"])
def test_what_may_pass_is_tried_again_as_often_as_allowed(make: MakeClient, kind: str) -> None:
    reply = {
        "503": problem(503, "not-ready", retry_after="0"),
        "502 of a proxy": Scripted(502, HTML, {"retry-after": "0"}),
        "cut answer": Scripted(200, b"x" * 1000, cut=True),
    }[kind]
    with scripted(reply, reply, GOOD) as script:
        assert make(script.url, max_retries=2).classify("a").score == 1.0
    with scripted(reply) as script:
        with pytest.raises((NotReadyError, UnreachableError), match="tried 2 times") as failed:
            make(script.url, max_retries=1).classify(["a"])
        assert (failed.value.attempts, len(script.requests), failed.value.items) == (2, 2, range(1))


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (problem(500, "internal"), ProblemError),
        (problem(504, "deadline-exceeded"), DeadlineExceededError),
        (problem(503, "model-left-out"), ModelLeftOutError),
        (problem(401, "unauthorized"), UnauthorizedError),
    ],
)
def test_what_would_fail_again_is_not_tried_again(
    make: MakeClient, reply: Scripted, error: type[ProblemError]
) -> None:
    with scripted(reply) as script, pytest.raises(error) as failed:
        make(script.url).classify("a")
    assert str(failed.value) == f"why ({reply.status}, request id 7)"
    assert (failed.value.status, failed.value.request_id, len(script.requests)) == (reply.status, "7", 1)


def test_each_attempt_tells_the_service_what_is_left_of_the_time(make: MakeClient) -> None:
    with scripted(problem(429, "queue-full", retry_after="1"), GOOD) as script:
        make(script.url, timeout=90, api_key="KEY").classify("a", timeout=60)
    first, second = (headers for _, headers, _ in script.requests)
    assert 30_000 < int(first["x-timeout-ms"]) <= 60_000
    assert int(second["x-timeout-ms"]) <= int(first["x-timeout-ms"]) - 1000
    assert first["authorization"] == "Bearer KEY"
    assert [body for _, _, body in script.requests] == [{"text": "a"}] * 2


def test_a_slow_service_is_left_after_the_timeout(
    make: MakeClient, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(Scripted(after_s=60)) as script:
        started_at = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer from http") as late:
            make(script.url, timeout=0.5).classify("a")
        assert isinstance(late.value, RequestTimeoutError) and time.monotonic() - started_at < 30
    monkeypatch.setattr("bert_client.transport.GRACE_S", 60)  # the service itself gives up first
    with serving(bundles=[bundles / "mood"], engine_slots=1) as real, gated(real, "mood"):
        with pytest.raises(DeadlineExceededError, match="no answer within"):
            make(real.url, timeout=0.5).classify("a")
        eventually(lambda: real.metric("bert_queue_texts") == 0)


def test_a_port_that_nobody_listens_on_is_tried_again(make: MakeClient) -> None:
    with pytest.raises(ConnectionError, match=r"no answer from http://127.0.0.1:9: .* \(tried 3 times\)"):
        make("http://127.0.0.1:9", max_retries=2).classify("a")
    with pytest.raises(UnreachableError, match=r"no answer from http://no-such-host\.invalid"):
        make("http://no-such-host.invalid", max_retries=0).ner(["a"])
    with pytest.raises(RequestTimeoutError, match=r"was not ready after 0\.3 s"):
        make("http://127.0.0.1:9").wait_until_ready(timeout=0.3)


def test_other_servers_are_named(make: MakeClient) -> None:
    page = Scripted(404, b"<html><body><h1>Not Found</h1></body></html>")
    told = r"/classify answered 404 Not Found, .*: 'Not Found' \(404\)"
    with scripted(page) as script, pytest.raises(ProblemError, match=told):
        make(script.url).classify("a")
    for body in (b"<html>hello</html>", b'{"answer": 42}', b"[]", b"[" * 100_000):
        with scripted(Scripted(200, body)) as script, pytest.raises(InvalidResponseError):
            make(script.url).classify("a")
    with pytest.raises(ValueError, match="base_url must begin with http"):
        make("localhost:8000")


def test_a_restart_is_not_noticed(make: MakeClient, bundles: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("--bundles", str(bundles / "mood"), "--frontends", "0", "--port", str(port))
    with started(*arguments) as process:
        client = make(address(process.until("Ctrl-C")), timeout=110, max_retries=50)
        before = client.classify("a film")
        process.popen.kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.classify, ["a film"])
        with started(*arguments):
            assert [each.label for each in waiting.result(120)] == [before.label]
            client.wait_until_ready("mood")


def test_a_service_that_says_when_to_come_back_uses_up_no_retries(make: MakeClient) -> None:
    loading, full = (
        problem(503, "not-ready", retry_after="0.2"),
        problem(429, "queue-full", retry_after="0.2"),
    )
    with scripted(loading, full, loading, full, GOOD) as script:
        assert make(script.url, max_retries=1).classify("a").label == "positive"
    with scripted(problem(503, "not-ready", retry_after="0.05")) as script:
        started_at = time.monotonic()
        with pytest.raises(NotReadyError, match="tried"):
            make(script.url, max_retries=1).classify("a", timeout=2)
        assert len(script.requests) >= 3 and time.monotonic() - started_at < 30
        with pytest.raises(NotReadyError):
            make(script.url, max_retries=0).classify("a")


def test_an_answer_that_drips_is_left_after_the_timeout(make: MakeClient) -> None:
    with scripted(Scripted(200, b" " * 400, drip_s=0.2)) as script:
        client = make(script.url, timeout=1)
        for call in (lambda: client.classify("a"), lambda: client.wait_until_ready(timeout=1)):
            started_at = time.monotonic()
            with pytest.raises(RequestTimeoutError):
                call()
            assert time.monotonic() - started_at < 30, "of the 80 s that the whole answer takes"


def test_a_list_that_fails_on_the_way_says_what_is_done(make: MakeClient) -> None:
    with scripted(GOOD, GOOD, problem(500, "internal")) as script, pytest.raises(BertError) as failed:
        make(script.url, batch_size=1, max_concurrency=1).classify(["a", "b", "c", "d"])
    assert failed.value.items is not None and len(failed.value.items) == 1
    assert failed.value.results and [each is not None for each in failed.value.results].count(True) == 2
