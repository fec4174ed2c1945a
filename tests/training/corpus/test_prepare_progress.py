"""The summary of a preparation: time and cores for tokens, and the time for the vocabulary."""

import io
from typing import Any

import pytest

from training.corpus import prepare_progress as module
from training.corpus.prepare_progress import PrepareProgress


class Clock:
    """Time that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def note(tokens: int) -> dict[str, Any]:
    part = {"documents": 1, "sentences": 2, "tokens": tokens}
    return {"train": part, "held_out": None, "empty": 0, "unknown": 0, "broken": 0, "problems": []}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> PrepareProgress:
    return PrepareProgress(1000, io.StringIO(), clock)


def shown(progress: PrepareProgress) -> str:
    assert isinstance(progress.stream, io.StringIO)
    return progress.stream.getvalue()


def test_the_vocabulary_s_time_is_not_the_tokens(progress: PrepareProgress, clock: Clock) -> None:
    with progress.vocabulary():
        clock.now += 90
    progress.begin()
    clock.now += 2
    progress.block(note(4000), bytes_read=500)
    assert shown(progress) == "1 documents  4,000 tokens  2,000 tokens/s  50% read  2 s left\n"
    clock.now += 2
    progress.block(note(4000), bytes_read=1000)
    summary = progress.summary()
    assert "8,000 tokens made in 4 s: 2,000 tokens/s" in summary
    assert "vocabulary trained in 1 min 30 s" in summary


def test_cores_are_said_of_the_tokens_alone(
    progress: PrepareProgress, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = [50.0]
    monkeypatch.setattr(module, "cpu_seconds", lambda: cpu[0])
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    with progress.vocabulary():
        clock.now += 50
    progress.begin()
    clock.now, cpu[0] = clock.now + 10, cpu[0] + 15
    progress.block(note(10), bytes_read=1000)
    summary = progress.summary()
    assert "75% of 2 cores" in summary


def test_blocks_of_an_earlier_run_do_not_count_for_the_speed(progress: PrepareProgress, clock: Clock) -> None:
    progress.count(note(1_000_000))
    progress.begin(bytes_read=600)
    clock.now += 2
    progress.block(note(4000), bytes_read=800)
    assert shown(progress) == "2 documents  1,004,000 tokens  2,000 tokens/s  80% read  2 s left\n"
    assert "vocabulary" not in progress.summary()
