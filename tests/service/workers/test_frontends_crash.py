"""Requests on which the engine's process dies, or never comes back: they are given up, and nobody else is."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.workers.crash_log import MOST_CRASHES
from tests.support.crashing import COMMAND, in_flight, text
from tests.support.crashing_child import ABORT, HANG, SLOW
from tests.support.fleet import Fleet, fleet, kill
from tests.support.live import Reply
from tests.support.problems import kind


@pytest.fixture
def crashing(bundles: Path) -> Iterator[Fleet]:
    with fleet("--bundles", str(bundles / "mood"), frontends=1, command=COMMAND) as running:
        yield running


def deaths(running: Fleet) -> list[int]:
    """Return at how many deaths each request was in the engine that was there at any."""
    (file,) = running.temporary.glob("*/engine.counts.json")
    return sorted(json.loads(file.read_text()).values())


@pytest.mark.slow
def test_a_request_that_ends_the_process_each_time_is_given_up_and_its_neighbours_are_answered(
    crashing: Fleet,
) -> None:
    def post(tokens: int) -> Reply:
        return crashing.post("/classify", text(tokens))

    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(post, SLOW)
        in_flight(crashing, 1)
        neighbours = [pool.submit(post, tokens) for tokens in (3, 4, 5)]
        fatal = pool.submit(post, ABORT)
        neighbours += [pool.submit(post, tokens) for tokens in (6, 7)]
        in_flight(crashing, 7)
        assert (fatal.result().status, kind(fatal.result())) == (500, "internal")
        assert [reply.result().status for reply in (first, *neighbours)] == [200] * 6
    assert deaths(crashing) == [*[1] * 5, MOST_CRASHES]  # all six were in one batch, then alone
    assert crashing.metric("bert_engine_restarts_total") == MOST_CRASHES
    assert post(3).status == 200


def test_a_service_that_is_stopping_still_starts_an_engine_that_died(crashing: Fleet) -> None:
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(crashing.post, "/classify", text(SLOW))
        in_flight(crashing, 1)
        engine = crashing.engine
        crashing.stop()
        kill(engine)
        assert reply.result(30).status == 200
    assert crashing.process.popen.wait(30) == 0


def test_a_batch_that_never_ends_does_not_keep_the_service_from_it(crashing: Fleet) -> None:
    children = crashing.children()
    late = crashing.post("/classify", text(HANG), x_timeout_ms="300")
    assert (late.status, kind(late)) == (504, "deadline-exceeded")
    crashing.stop()
    assert crashing.process.popen.wait(30) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
