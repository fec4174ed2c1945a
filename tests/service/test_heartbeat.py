"""The engine process's sign of life, as its parent sees it."""

import os
from pathlib import Path

import pytest

from service.heartbeat import FILE, Pulse, beat


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("service.heartbeat.time.monotonic", lambda: clock.now)
    return clock


def later(folder: Path) -> None:
    """Give the sign at another time, whatever the file system's clock shows."""
    before = (folder / FILE).stat().st_mtime_ns
    beat(folder)
    os.utime(folder / FILE, ns=(before + 10**9, before + 10**9))


def looked(pulse: Pulse, clock: Clock, seconds: float, times: int) -> float:
    for _ in range(times):
        clock.now += seconds
        pulse.look()
    return pulse.silent_s


def test_before_the_first_sign_nobody_is_silent(tmp_path: Path, clock: Clock) -> None:
    assert looked(Pulse(tmp_path), clock, 0.5, 100) == 0.0


def test_silence_is_counted_until_the_next_sign(tmp_path: Path, clock: Clock) -> None:
    pulse = Pulse(tmp_path)
    beat(tmp_path)
    pulse.look()
    assert looked(pulse, clock, 0.5, 10) == 5.0
    later(tmp_path)
    assert looked(pulse, clock, 0.5, 1) == 0.0
    assert looked(pulse, clock, 0.5, 4) == 2.0


def test_who_was_stopped_along_with_it_counts_a_second(tmp_path: Path, clock: Clock) -> None:
    pulse = Pulse(tmp_path)
    beat(tmp_path)
    pulse.look()
    assert looked(pulse, clock, 3600, 1) == 1.0


def test_of_another_process_nothing_is_known(tmp_path: Path, clock: Clock) -> None:
    pulse = Pulse(tmp_path)
    beat(tmp_path)
    pulse.look()
    looked(pulse, clock, 0.5, 10)
    pulse.forget()
    assert looked(pulse, clock, 0.5, 10) == 0.0


def test_a_folder_that_is_gone_ends_nobody_and_is_silence(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    pulse = Pulse(folder)
    beat(folder)
    pulse.look()
    (folder / FILE).unlink()
    folder.rmdir()
    beat(folder)
    assert looked(pulse, clock, 0.5, 10) == 5.0
