"""Requests that crash or hang the engine process are given up, and no others are."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.workers.messages import MAX_RETRIES
from tests.support.crashing import COMMAND, in_flight, release, text
from tests.support.crashing_child import ABORT, HANG, SLOW
from tests.support.fleet import Fleet, fleet, kill
from tests.support.live import Reply
from tests.support.problems import kind


@pytest.fixture(scope="module")
def lasting(bundles: Path) -> Iterator[Fleet]:
    """A service that its tests leave running."""
    with fleet("--bundles", str(bundles / "mood"), frontends=2, command=COMMAND) as running:
        yield running


@pytest.fixture
def crashing(bundles: Path) -> Iterator[Fleet]:
    with fleet("--bundles", str(bundles / "mood"), frontends=1, command=COMMAND) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("poisons", [1, 2])
def test_a_request_that_ends_the_process_each_time_is_given_up_and_its_neighbours_are_answered(
    lasting: Fleet, poisons: int
) -> None:
    def post(tokens: int) -> Reply:
        return lasting.post("/classify", text(tokens))

    release(lasting, done=False)
    before = lasting.metric("bert_engine_restarts_total")
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(post, SLOW)
        in_flight(lasting, 1)
        neighbours = [pool.submit(post, tokens) for tokens in (3, 4, 5)]
        fatal = [pool.submit(post, ABORT) for _ in range(poisons)]
        neighbours += [pool.submit(post, tokens) for tokens in (6, 7)]
        in_flight(lasting, 6 + poisons)
        release(lasting)
        for reply in fatal:
            assert (reply.result().status, kind(reply.result())) == (500, "internal")
        assert [reply.result().status for reply in (first, *neighbours)] == [200] * 6
    lasting.all_ready()
    # Poisons that share engine processes end the first ones together; each ends its last one alone. Two frontends may return
    # to a new engine one after the other, and then their poisons share none.
    restarts = lasting.metric("bert_engine_restarts_total") - before
    assert MAX_RETRIES + poisons <= restarts <= poisons * (MAX_RETRIES + 1)
    assert post(3).status == 200


def test_a_service_that_is_stopping_still_starts_an_engine_that_died(crashing: Fleet) -> None:
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(crashing.post, "/classify", text(SLOW))
        in_flight(crashing, 1)
        engine = crashing.engine
        crashing.stop()
        kill(engine)
        release(crashing)
        assert reply.result(120).status == 200
    assert crashing.process.popen.wait(120) == 0


def test_a_batch_that_never_ends_does_not_keep_the_service_from_it(crashing: Fleet) -> None:
    children = crashing.children()
    late = crashing.post("/classify", text(HANG), x_timeout_ms="300")
    assert (late.status, kind(late)) == (504, "deadline-exceeded")
    crashing.stop()
    assert crashing.process.popen.wait(120) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
