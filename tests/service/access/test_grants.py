"""What is left of a key's rates, with a clock of our own."""

import os

import pytest

from bert.errors import RateLimitedError
from service.access.grants import Grant, Rules


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def entered(grant: Grant, times: int) -> int:
    """Begin and end so many requests; return how many were taken."""
    taken = 0
    for _ in range(times):
        try:
            grant.enter()
        except RateLimitedError:
            continue
        grant.leave()
        taken += 1
    return taken


def test_a_second_has_so_many_requests_and_they_come_back_steadily(clock: Clock) -> None:
    grant = Grant("web", Rules(requests_per_second=10), clock=clock)
    assert grant.requests_left() == (10, 10, 0)
    assert entered(grant, 20) == 10
    assert grant.requests_left() == (10, 0, 1)
    clock.now += 0.35
    assert entered(grant, 20) == 3
    total, clock.now = 0, 1000.0
    for _ in range(10_000):
        clock.now += 0.01
        total += entered(grant, 1)
    assert total == pytest.approx(1000, abs=10)


@pytest.mark.parametrize("processes", [1, 4])
def test_each_of_several_processes_has_its_part_and_a_rate_below_one_lets_one_through(
    clock: Clock, processes: int
) -> None:
    grants = [Grant("web", Rules(requests_per_second=2), processes, clock) for _ in range(processes)]
    total = 0
    for _ in range(1000):
        clock.now += 0.1
        total += sum(entered(grant, 5) for grant in grants)
    assert total == pytest.approx(200, abs=5)


def test_the_error_says_when_to_come_again(clock: Clock) -> None:
    grant = Grant("web", Rules(requests_per_second=0.25), clock=clock)
    assert entered(grant, 1) == 1
    with pytest.raises(
        RateLimitedError, match=r"the key 'web' has used its requests \(0.25 a second\)"
    ) as caught:
        grant.enter()
    assert caught.value.retry_after_s == pytest.approx(4)
    clock.now += caught.value.retry_after_s
    assert entered(grant, 1) == 1


def test_a_text_longer_than_a_second_of_tokens_is_taken_and_the_next_waits_for_it(clock: Clock) -> None:
    grant = Grant("web", Rules(tokens_per_second=100), clock=clock)
    grant.spend(500)
    with pytest.raises(RateLimitedError) as caught:
        grant.spend(1)
    assert caught.value.retry_after_s == pytest.approx(4.01)
    clock.now += 4.5
    grant.spend(50)
    grant.refund(50)
    grant.spend(50)
    with pytest.raises(RateLimitedError):
        grant.spend(10)


@pytest.mark.parametrize("has_locks", [True, False])
def test_requests_in_progress_are_bounded_and_a_refused_one_costs_nothing(
    clock: Clock, has_locks: bool
) -> None:
    file = None if has_locks else os.open(os.devnull, os.O_RDONLY)
    grant = Grant("web", Rules(concurrency=2, requests_per_second=3), clock=clock, file=file)
    grant.enter()
    grant.enter()
    for _ in range(5):
        with pytest.raises(RateLimitedError, match="2 requests in progress"):
            grant.enter()
    grant.leave()
    grant.enter()
    if file is not None:
        os.close(file)


def test_a_key_without_rules_may_do_all(clock: Clock) -> None:
    grant = Grant("web", Rules(), clock=clock)
    assert entered(grant, 1000) == 1000 and grant.requests_left() is None
    grant.spend(10**9)
    grant.spend(10**9)
    assert grant.may_use("any")
