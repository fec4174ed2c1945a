"""The log of steps: each step once."""

from pathlib import Path

from training.pretraining.steps_log import StepsLog, read_lines


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
