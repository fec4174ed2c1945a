import errno
import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from training.engine import progress as module
from training.engine.progress import Bar, Lines, Speed, format_scores, format_seconds, make_reporter, stage
from training.engine.records import TensorBoard


class Clock:
    """Time that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def numbers(step: int, tokens: float = 0.0) -> dict[str, float]:
    return {"step": step, "tokens": tokens or step * 100.0, "loss": 1 / step, "lr": 1e-4}


def test_speed_and_time_left_come_from_the_steps_of_late() -> None:
    clock = Clock()
    speed = Speed(total_steps=100, done_steps=0, clock=clock, memory_s=30)
    for step in range(1, 11):
        clock.now += 1
        speed.update(step, step * 100)
    assert speed.tokens_per_second == pytest.approx(100)
    assert speed.seconds_left == pytest.approx(90)
    for step in range(11, 61):
        clock.now += 2
        speed.update(step, step * 100)
    assert speed.tokens_per_second == pytest.approx(50)
    assert speed.seconds_left == pytest.approx(80)


def test_steps_of_an_earlier_run_do_not_count_for_the_speed() -> None:
    clock = Clock()
    speed = Speed(total_steps=110, done_steps=100, clock=clock, done_tokens=10_000)
    assert speed.seconds_left is None
    for step in range(101, 106):
        clock.now += 1
        speed.update(step, step * 100.0)
        assert speed.tokens_per_second == pytest.approx(100)
    assert speed.seconds_left == pytest.approx(5)


def test_a_run_that_goes_on_shows_its_own_speed_from_its_first_line() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(Speed(20, 10, clock, done_tokens=1000), stream)
    clock.now = 7  # seconds in which the save is read
    with lines:
        clock.now += 60  # the evaluation in which the run was stopped
        lines.evaluation(10, {"dev": {"f1": 0.5}})
        clock.now += 1
        lines.step(numbers(11))
    assert stream.getvalue().splitlines()[1] == "step 11 of 20  loss 0.0909  100 tokens/s  9 s left"


def test_without_a_terminal_a_line_comes_every_few_seconds_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    with Lines(Speed(30, 0, clock), stream, every_s=10) as lines:
        for step in range(1, 31):
            clock.now += 1
            lines.step(numbers(step))
        lines.evaluation(30, {"dev": {"f1": 0.5}})
    told = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in told] == [
        "step 1 of 30", "step 11 of 30", "step 21 of 30", "step 30 of 30", "step 30: dev: f1 0.5000",
    ]  # fmt: skip
    assert told[1] == "step 11 of 30  loss 0.0909  100 tokens/s  19 s left"


def test_a_run_by_the_clock_shows_its_steps_and_the_time_left_and_the_last_line() -> None:
    clock, stream = Clock(), io.StringIO()
    with Lines(Speed(0, 0, clock), stream, 60.0) as lines:
        for step in range(1, 9):
            clock.now += 9  # a second of each nine goes to evaluations and saves, which do not count
            lines.step({**numbers(step), "seconds": 8.0 * step})
    told = [line.split("  ") for line in stream.getvalue().splitlines()]
    assert [(line[0], line[-1]) for line in told] == [
        ("step 1", "52 s left"), ("step 3", "36 s left"), ("step 5", "20 s left"), ("step 7", "4 s left"),
        ("step 8", "0 s left"),
    ]  # fmt: skip


def test_the_bar_of_a_run_by_the_clock_fills_with_its_time() -> None:
    stream, clock = io.StringIO(), Clock()
    with Bar(Speed(0, 0, clock), Console(file=stream, force_terminal=True, width=120), 60.0) as bar:
        clock.now = 15
        bar.step({**numbers(7), "seconds": 15.0})
    shown = stream.getvalue()
    assert "step 7 " in shown and "45 s left" in shown
    assert "7/" not in shown and "/0" not in shown
    assert bar.bar.tasks[0].percentage == 25


def test_the_share_of_the_machine_s_peak_is_shown_where_it_is_known() -> None:
    clock, stream = Clock(), io.StringIO()
    with Lines(Speed(2, 0, clock), stream) as lines:
        clock.now += 2
        lines.step({**numbers(1), "mfu": 0.412})
    assert stream.getvalue() == "step 1 of 2  loss 1.0000  50 tokens/s  MFU 41%  2 s left\n"


def test_on_a_terminal_a_bar_shows_loss_speed_and_time_left() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=True, width=120)
    with Bar(Speed(30, 0, clock), console) as bar:
        clock.now = 2
        bar.step(numbers(2))
        bar.evaluation(2, {"accuracy": 0.9})
    shown = stream.getvalue()
    assert "2/30" in shown
    assert "loss 0.5000  100 tokens/s  28 s left" in shown
    assert "step 2: accuracy 0.9000" in shown


def test_the_reporter_depends_on_where_the_output_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_reporter(10, stream=Terminal()), Bar)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    assert isinstance(make_reporter(10, stream=io.StringIO()), Lines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reporter(10, stream=Terminal()), Lines)


def test_a_stage_says_what_is_done_and_how_long_if_it_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with stage("Reading data", stream):
        pass
    assert stream.getvalue() == "Reading data ...\n"
    monkeypatch.setattr(module, "QUIET_S", -1.0)
    with stage("Reading data", stream):
        pass
    assert stream.getvalue().endswith("Reading data: 0 s\n")


def test_times_and_scores_are_written_for_people() -> None:
    assert [format_seconds(s) for s in (5.4, 65, 3600 * 3 + 65)] == ["5 s", "1 min 5 s", "3 h 1 min"]
    assert format_scores({"a": {"f1": 0.5}, "b": {"f1": 1}}) == "a: f1 0.5000; b: f1 1.0000"


def test_tensorboard_gets_the_numbers_of_steps_and_evaluations(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoard(tmp_path) as board:
        board.step(numbers(1))
        board.step({**numbers(2), "loss_mlm": 0.4, "mfu": 0.41, "mean_length": 9.0})
        board.evaluation(2, {"wikigold": {"f1": 0.75}})
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 0.5)]
    assert events.Scalars("dev/wikigold/f1")[0].value == 0.75
    assert sorted(events.Tags()["scalars"]) == [
        "dev/wikigold/f1",
        "train/loss",
        "train/loss_mlm",
        "train/lr",
        "train/mfu",
    ]


class WritesToAFullDisk(threading.Thread):
    """As the thread of TensorBoard's writer does."""

    def run(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_hide_what_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(WritesToAFullDisk, "__module__", "tensorboard.summary.writer.event_file_writer")
    hook = threading.excepthook

    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ValueError, match="the reason"), TensorBoard(tmp_path) as board:
        monkeypatch.setattr(board, "close", fails)
        writer = WritesToAFullDisk()
        writer.start()
        writer.join()
        raise ValueError("the reason")
    assert threading.excepthook is hook
    assert "Traceback" not in capsys.readouterr().err
