"""Signs of life from one process to its parent, and the time without one."""

import os

import pytest

from service.workers.heartbeat import HeartbeatMonitor, SilenceTimer, heartbeat, unread_s


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("service.workers.heartbeat.time.monotonic", lambda: clock.now)
    return clock


def looked(monitor: HeartbeatMonitor, clock: Clock, seconds: float, times: int) -> float | None:
    found = None
    for _ in range(times):
        clock.now += seconds
        found = monitor.silent_s()
    return found


def test_the_first_sign_has_a_limit_and_each_sign_says_that_of_the_next(clock: Clock) -> None:
    monitor = HeartbeatMonitor(10.0)
    beat = heartbeat(monitor.child_fd)
    assert looked(monitor, clock, 0.5, 20) is None
    assert looked(monitor, clock, 0.5, 1) == 10.5
    beat(60.0)
    beat(5.0)
    assert looked(monitor, clock, 0.5, 11) is None
    assert looked(monitor, clock, 0.5, 1) == 5.5
    beat(5.0)
    assert looked(monitor, clock, 0.5, 1) is None
    monitor.started()
    monitor.close()


def test_an_observer_that_was_stopped_along_with_it_counts_a_second(clock: Clock) -> None:
    timer = SilenceTimer()
    clock.now += 3600
    assert timer.update(happened=False) == 1.0
    assert timer.update(happened=True) == 0.0


def test_a_parent_that_does_not_read_or_is_gone_stops_nobody() -> None:
    monitor = HeartbeatMonitor(10.0)
    beat = heartbeat(monitor.child_fd)
    for _ in range(2**17 // 8):
        beat(5.0)
    monitor.close()
    beat(5.0)
    os.close(monitor.child_fd)


def test_a_child_knows_for_how_long_its_parent_has_not_looked() -> None:
    monitor = HeartbeatMonitor(60.0)
    beat = heartbeat(monitor.child_fd)
    assert unread_s(monitor.child_fd) == 0
    for _ in range(3):
        beat(5.0)
    assert unread_s(monitor.child_fd) == 3
    monitor.silent_s()
    assert unread_s(monitor.child_fd) == 0
    monitor.started()
    monitor.close()
