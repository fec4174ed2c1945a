"""Requests are refused by the size of their bodies only while the queue refuses their like."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bert.errors import QueueFullError, TooLateError
from service.pipeline.early_refusal import LEAST_TRUST_S, MOST_TRUST_S, EarlyRefusal
from service.scheduling.fair_queue import Job
from tests.support.overload import Simulation, Sizes, documents, mixed, sentences

BYTES = 4
"""Bytes a token of the texts here."""
RATE = 1000.0
EMPTIED = QueueFullError(2000, 2000, 0.5, tokens_per_s=RATE)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Refusing:
    """What is known after requests of 100 tokens, and after the queue refused another one."""

    def __init__(self, error: QueueFullError = EMPTIED, tokens: int = 100, tokenize_s: float = 0.0) -> None:
        self.clock = Clock()
        self.early = EarlyRefusal(self.clock)
        for _ in range(100):
            self.early.learn("m", 100 * BYTES, 100)
        self.early.note("m", tokens, tokenize_s, error)

    def passes(self, tokens: int = 100, *, has_s: float = 5.0, model: str = "m") -> bool:
        try:
            self.early.check([model], tokens * BYTES, self.clock.now + has_s)
        except QueueFullError as error:
            assert error.retry_after_s > 0
            return False
        return True

    def at(self, seconds: float) -> "Refusing":
        self.clock.now = seconds
        return self


def test_what_is_at_least_as_large_is_refused_until_the_queue_has_room() -> None:
    refusing = Refusing()
    assert not refusing.passes() and not refusing.passes(101) and not refusing.passes(5000)
    assert not refusing.at(0.4).passes()
    assert refusing.at(0.51).passes()


def test_who_passes_makes_the_next_wait() -> None:
    refusing = Refusing(tokens=200).at(0.51)
    refusing.early.enter("m", 200 * BYTES, 5.0)
    with pytest.raises(QueueFullError) as refused:
        refusing.early.enter("m", 200 * BYTES, 5.0)
    assert refused.value.retry_after_s == pytest.approx(0.19, abs=0.01)


def test_a_smaller_request_waits_for_less() -> None:
    refusing = Refusing(tokens=1000)
    assert refusing.passes(100)
    assert not refusing.passes(900)
    assert refusing.at(0.45).passes(900)


def test_a_request_with_more_time_passes() -> None:
    refusing = Refusing(TooLateError(9000, 10_000, 2.0, 6.0, 5.0, tokens_per_s=RATE))
    assert not refusing.passes(has_s=5.0)
    assert not refusing.passes(has_s=4.0)
    assert refusing.passes(has_s=8.0)
    full = Refusing(QueueFullError(9000, 9000, 2.0, tokens_per_s=RATE))
    assert not full.passes(has_s=1e6)  # the bound has no deadline


def test_another_size_class_and_another_model_pass() -> None:
    refusing = Refusing(TooLateError(9000, 10_000, 0.9, 6.0, 5.0, tokens_per_s=RATE, sizes=(50, 200)))
    assert not refusing.passes(150)
    assert refusing.passes(50) and refusing.passes(300)
    assert refusing.passes(model="n")
    refusing.early.check(["m", "n"], 100 * BYTES, 5.0)
    refusing.early.check([], 100 * BYTES, 5.0)


def test_an_answer_without_a_wait_ends_the_refusals_of_its_size() -> None:
    refusing = Refusing()
    refusing.early.forget("m", 100, 0.5)
    assert not refusing.passes()
    refusing.early.forget("m", 100, 0.01)
    assert refusing.passes()


def test_another_key_passes() -> None:
    refusing = Refusing()
    refusing.early.check(["m"], 100 * BYTES, 5.0, "other")
    refusing.early.note("m", 100, 0.0, EMPTIED, "other")
    with pytest.raises(QueueFullError):
        refusing.early.check(["m"], 100 * BYTES, 5.0, "other")


def test_a_size_that_may_be_of_two_classes_passes() -> None:
    refusing = Refusing(TooLateError(9000, 10_000, 0.9, 6.0, 5.0, tokens_per_s=RATE, sizes=(50, 120)))
    assert not refusing.passes(110)
    for _ in range(20):
        for ratio in (0.8, 1.2):
            refusing.early.learn("m", 100 * BYTES, int(100 * ratio))
    assert refusing.passes(110)


def test_without_a_request_before_or_a_known_size_everything_passes() -> None:
    early = EarlyRefusal(Clock())
    early.note("m", 100, 0.0, EMPTIED)
    early.check(["m"], 400, 5.0)
    early.learn("m", 0, 100)  # no body
    early.check(["m"], 400, 5.0)
    Refusing().early.check(["m"], 0, 5.0)


def test_an_engine_that_is_away_has_no_speed_and_refuses_only_what_is_as_large() -> None:
    refusing = Refusing(QueueFullError(900, 1000, 0.9))
    assert not refusing.passes(100) and refusing.passes(99)


@pytest.mark.parametrize(("tokenize_s", "trust_s"), [(0.0, LEAST_TRUST_S), (0.1, 2.0), (5.0, MOST_TRUST_S)])
def test_what_the_queue_said_is_believed_for_long_only_where_asking_again_costs_much(
    tokenize_s: float, trust_s: float
) -> None:
    refusing = Refusing(QueueFullError(9, 9, 100.0, tokens_per_s=RATE), 1000, tokenize_s)
    assert not refusing.at(0.99 * trust_s).passes(1000)
    assert refusing.at(1.01 * trust_s).passes(1000)
    refusing.early.enter("m", 1000 * BYTES, 1e3)  # others pass as fast as the queue runs them
    assert not refusing.at(1.01 * trust_s + 0.9).passes(1000)
    assert refusing.at(2.01 * trust_s).passes(1000)


@dataclass
class Guarded(Simulation):
    """Requests that are looked at by their bytes before they come to the queue."""

    noise: Callable[[random.Random], float] = lambda _: 1.0
    """Bytes a token, over BYTES."""
    tokenize_s: float = 0.01
    early: EarlyRefusal = field(init=False)
    asked: int = 0
    wrongly: int = 0
    """Requests that the queue would have admitted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.early = EarlyRefusal(lambda: self.now)

    def _arrive(self, job: Job) -> None:
        tokens = sum(job.sizes)
        size = int(tokens * BYTES * self.noise(self.chance))
        try:
            self.early.enter("m", size, job.deadline)
        except QueueFullError:
            self.offered.append(job)
            self.refused += 1
            self.wrongly += self._has_room(job)
            return
        self.early.learn("m", size, tokens)
        self.asked += 1
        super()._arrive(job)

    def _has_room(self, job: Job) -> bool:
        if not (self.running or self.queue.tokens):
            return True
        try:
            self.queue._check_deadline(job, self.queue._weigh(job), self.now, 0.0)
        except QueueFullError:
            return False
        return True

    def note(self, job: Job, error: QueueFullError) -> None:
        self.early.note("m", sum(job.sizes), self.tokenize_s, error)


def pages(chance: random.Random) -> list[int]:
    return [182] * 16


def lists(_: random.Random) -> list[int]:
    """Return less than the largest of their size class, by more than the bytes' noise."""
    return [120] * 40


def blurred(chance: random.Random) -> float:
    return chance.uniform(0.7, 1.4)


@pytest.mark.parametrize(("noise", "per_s"), [(lambda _: 1.0, 2), (blurred, 5)])
@pytest.mark.parametrize("sizes", [pages, lists, documents])
def test_in_a_storm_few_are_asked_in_vain_and_the_engine_works_on(
    sizes: Sizes, noise: Callable[[random.Random], float], per_s: float
) -> None:
    storm, bare = Guarded(sizes, 16, 6, lasts_s=60.0, noise=noise), Simulation(sizes, 16, 6, lasts_s=60.0)
    storm.run()
    bare.run()
    assert storm.goodput() >= 0.95 * bare.goodput()
    assert storm.asked - len(storm.done_at) <= per_s * 60


@pytest.mark.parametrize("sizes", [sentences, mixed])
def test_in_a_storm_of_short_texts_most_are_refused_by_their_bytes(sizes: Sizes) -> None:
    storm, bare = Guarded(sizes, 16, 6, lasts_s=20.0, noise=blurred), Simulation(sizes, 16, 6, lasts_s=20.0)
    storm.run()
    bare.run()
    assert storm.goodput() >= 0.95 * bare.goodput()
    assert storm.asked - len(storm.done_at) <= 0.1 * len(storm.offered)


@pytest.mark.parametrize("sizes", [sentences, pages, lists, documents, mixed])
def test_a_service_that_has_time_refuses_nothing(sizes: Sizes) -> None:
    quiet = Guarded(sizes, 0.3, 60, noise=blurred)
    quiet.run()
    assert quiet.refused == 0
