"""The log of steps: each step once."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.engine.records import MOST_STEPS, StepsLog, bounded, read_lines, read_steps
from training.report.page import training_summary
from training.report.pretraining import split_log


def test_a_resumed_run_writes_each_step_once(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    first = StepsLog(file, 0)
    for step in range(1, 6):
        first.write({"step": step, "loss": 1 / step})
    first.close()
    again = StepsLog(file, 3)
    again.write({"step": 4, "loss": 0.25})
    again.close()
    assert [line["step"] for line in read_lines(file)] == [1, 2, 3, 4]
    assert [line["loss"] for line in read_lines(file)][2] == 1 / 3


def test_a_line_cut_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1}\n{"ste')
    log = StepsLog(file, 1)
    log.write({"step": 2})
    log.close()
    assert [line["step"] for line in read_lines(file)] == [1, 2]


def test_an_evaluation_that_is_still_due_is_dropped_with_what_follows(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    log = StepsLog(file, 0)
    kept: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": 1.0},
        {"step": 2, "warning": "slow"},
    ]
    for line in (*kept, {"step": 2, "held_out": {"mlm_loss": 3.0}}, {"step": 3, "loss": 0.5}):
        log.write(line)
    log.close()
    StepsLog(file, 2, evaluation_due=True).close()
    assert list(read_lines(file)) == kept
    assert read_steps(file) == kept[:2]


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log of a run of four times MOST_STEPS, which is 8 MB."""
    file = tmp_path_factory.mktemp("long") / "log.jsonl"
    lines = (
        {
            "step": n,
            "tokens": 100.0 * n,
            "loss": 1 / n,
            "lr": 1e-4,
            "tokens_per_second": 50.0 + n % 7,
            "grad_norm": 1.0,
        }
        for n in range(1, 4 * MOST_STEPS + 1)
    )
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)
    return file


@pytest.mark.parametrize(
    ("read", "megabytes"),
    [
        (lambda file: StepsLog(file, 4 * MOST_STEPS).close(), 1),
        (read_steps, 16),
        (lambda file: split_log(read_lines(file)), 16),
    ],
    ids=["resuming", "report of a fine-tuning", "report of a pretraining"],
)
def test_a_long_log_is_not_held_in_memory(
    read: Callable[[Path], object], megabytes: int, long_log: Path
) -> None:
    tracemalloc.start()
    try:
        read(long_log)
        assert tracemalloc.get_traced_memory()[1] < megabytes * 2**20
    finally:
        tracemalloc.stop()


def test_the_summary_of_a_long_run_is_that_of_all_its_steps(long_log: Path) -> None:
    found, every = read_steps(long_log), [line for line in read_lines(long_log) if "loss" in line]
    assert MOST_STEPS // 2 <= len(found) <= MOST_STEPS
    exact, kept = training_summary(every), training_summary(found)
    for name, value in exact.items():
        assert kept[name] == pytest.approx(value, rel=1e-3), name


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, [1]), (8, [*range(1, 9)]), (9, [2, 4, 6, 8, 9]), (30, [4, 8, 12, 16, 20, 24, 28, 30])],
)
def test_of_many_steps_every_nth_and_the_last_are_kept(count: int, kept: list[int]) -> None:
    lines = [
        {"step": n, "loss": None, "tokens": n, "tokens_per_second": n % 3 or None}
        for n in range(1, count + 1)
    ]
    seconds = sum(1 / line["tokens_per_second"] for line in lines if line["tokens_per_second"])
    found = bounded(lines, 8)
    assert [line["step"] for line in found] == kept
    spans = zip([0, *kept], found, strict=False)
    took = [(line["tokens"] - begun) / speed for begun, line in spans if (speed := line["tokens_per_second"])]
    assert sum(took) == pytest.approx(seconds)
