"""Progress of a run for the person who waits: a bar on a terminal, elsewhere a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 10.0
QUIET_S = 2.0
"""Duration above which a stage says how long it took, in seconds."""


def make_reporter(
    total_steps: int,
    done_steps: int = 0,
    stream: IO[str] | None = None,
    *,
    done_tokens: float = 0.0,
    total_s: float = 0.0,
) -> "Lines":
    """Return a bar where the output is a terminal, else plain lines.

    `done_steps` and `done_tokens` of an earlier process do not count for the speed. `total_s` is the length of a run by
    the clock, whose `total_steps` is 0.
    """
    stream = stream or sys.stderr
    console, speed = Console(file=stream), Speed(total_steps, done_steps, done_tokens=done_tokens)
    return Bar(speed, console, total_s) if _is_live(stream, console) else Lines(speed, stream, total_s)


class Speed:
    """Recent tokens a second, and the time left; the clock is passed in."""

    def __init__(
        self,
        total_steps: int,
        done_steps: int,
        clock: Callable[[], float] = time.monotonic,
        memory_s: float = 30.0,
        *,
        done_tokens: float = 0.0,
    ) -> None:
        """Start the clock; steps within the last `memory_s` seconds decide the speed.

        `done_steps` and `done_tokens` are those of an earlier process; they do not count for the speed.
        """
        self.total_steps, self.clock, self._memory_s = total_steps, clock, memory_s
        self._marks = [(clock(), done_steps, done_tokens)]  # time, step, tokens

    def update(self, step: int, tokens: float) -> None:
        """Count a finished step and the tokens since the start of the run."""
        now = self.clock()
        self._marks.append((now, step, tokens))
        while len(self._marks) > 2 and now - self._marks[0][0] > self._memory_s:
            self._marks.pop(0)

    def begin(self) -> None:
        """Restart the clock before the first step, which does not include the time until then."""
        if len(self._marks) == 1:
            self._marks = [(self.clock(), *self._marks[0][1:])]

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self._marks[-1][1]

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second over the last seconds, evaluations and saves among them."""
        (began, _, before), (ended, _, after) = self._marks[0], self._marks[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last step at this speed; None before anything is known."""
        (began, first, _), (ended, last, _) = self._marks[0], self._marks[-1]
        return (self.total_steps - last) * (ended - began) / (last - first) if last > first else None


class Lines:
    """Lines for log files and services that collect output, one every few seconds; used as a context manager."""

    def __init__(
        self, speed: Speed, stream: IO[str], total_s: float = 0.0, every_s: float = LINE_EVERY_S
    ) -> None:
        """Name the stream; the first step always gets a line."""
        self._speed, self._stream, self._total_s, self._every_s = speed, stream, total_s, every_s
        self._next_s = speed.clock()

    def __enter__(self) -> Self:
        self._speed.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def step(self, numbers: Mapping[str, float]) -> None:
        """Show a step of the optimiser; `numbers` are the loop's: step, tokens, seconds, loss, ..."""
        self._speed.update(int(numbers["step"]), numbers["tokens"])
        parts = [f"loss {numbers['loss']:.4f}", f"{self._speed.tokens_per_second:,.0f} tokens/s"]
        if "mfu" in numbers:
            parts.append(f"MFU {numbers['mfu']:.0%}")
        left = max(0.0, self._total_s - numbers["seconds"]) if self._total_s else self._speed.seconds_left
        if left is not None:
            parts.append(f"{format_seconds(left)} left")
        self._show(int(numbers["step"]), "  ".join(parts), numbers)

    def evaluation(self, step: int, scores: Mapping[str, Any]) -> None:
        """Print the scores on held-out data."""
        self._speed.begin()
        self.say(f"step {step:,}: {format_scores(scores)}")

    def say(self, message: str) -> None:
        """Print a line at once: buffered output looks like a hung run."""
        print(message, file=self._stream, flush=True)

    def _show(self, step: int, shown: str, numbers: Mapping[str, float]) -> None:
        """Print a line if it is time, and at the last step."""
        now, total = self._speed.clock(), self._speed.total_steps
        last = numbers["seconds"] >= self._total_s if self._total_s else step == total
        if now >= self._next_s or last:
            self._next_s = now + self._every_s
            place = f"step {step:,}" if self._total_s else f"step {step:,} of {total:,}"
            self.say(f"{place}  {shown}")


class Bar(Lines):
    """A progress bar with loss, tokens a second and time left, for a terminal."""

    def __init__(self, speed: Speed, console: Console, total_s: float = 0.0) -> None:
        """Prepare the bar; entering the context shows it."""
        super().__init__(speed, console.file, total_s)
        names = ("{task.description}", "{task.fields[place]}", "{task.fields[numbers]}")
        first, *others = map(TextColumn, names)
        self.bar = Progress(first, BarColumn(bar_width=None), *others, TimeElapsedColumn(), console=console)
        self._task = self.bar.add_task(
            "Training",
            total=total_s or speed.total_steps,
            completed=0 if total_s else speed.step,
            place=self._place(speed.step),
            numbers="",
        )

    def __enter__(self) -> Self:
        self.bar.start()
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def say(self, message: str) -> None:
        """Print above the bar."""
        self.bar.console.print(message, highlight=False, markup=False)

    def _show(self, step: int, shown: str, numbers: Mapping[str, float]) -> None:
        done = numbers["seconds"] if self._total_s else step
        self.bar.update(self._task, completed=done, place=self._place(step), numbers=shown)

    def _place(self, step: int) -> str:
        return f"step {step}" if self._total_s else f"{step}/{self._speed.total_steps}"


@contextmanager
def stage(what: str, stream: IO[str] | None = None, *, quiet: bool = False) -> Iterator[None]:
    """Announce a stage, and at its end how long it took if it took long; print nothing where `quiet`."""
    if quiet:
        yield
        return
    stream = stream or sys.stderr
    console, began = Console(file=stream), time.monotonic()
    if _is_live(stream, console):
        with console.status(f"{what} ..."):
            yield
    else:
        print(f"{what} ...", file=stream, flush=True)
        yield
    seconds = time.monotonic() - began
    if seconds > QUIET_S:
        print(f"{what}: {format_seconds(seconds)}", file=stream, flush=True)


def format_scores(scores: Mapping[str, Any]) -> str:
    """Return "accuracy 0.9123  f1 0.9001", or with the files' names: "dev: ...; test: ..."."""
    if any(isinstance(value, Mapping) for value in scores.values()):
        return "; ".join(f"{name}: {format_scores(values)}" for name, values in scores.items())
    return "  ".join(f"{name} {value:.4f}" for name, value in scores.items())


def format_seconds(seconds: float) -> str:
    """Return "45 s", "12 min 5 s" or "3 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _is_live(stream: IO[str], console: Console) -> bool:
    """Ask the stream itself: rich would also take a log file for a terminal where FORCE_COLOR is set."""
    return stream.isatty() and not console.is_dumb_terminal
