"""The log of steps: each step once."""

from pathlib import Path
from typing import Any

from training.core.records import StepsLog, read_lines, read_steps


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
