"""Records of a run: `log.jsonl`, TensorBoard, and what the person who waits is shown."""

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from bert.errors import TrainingError
from training.core.checkpoints import CheckpointStore
from training.core.progress import Lines
from training.core.state import Progress

LOG = "log.jsonl"
"""File of the steps' numbers, in the run's folder."""
STEP_NUMBERS = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")
"""Numbers of a step that TensorBoard gets, beside the parts of a loss that is a sum."""
MOST_STEPS = 10_000
"""Steps that a report keeps in memory; of a longer run, neighbours are taken together."""


class Records:
    """The leading process's records, used as a context manager; the other processes keep none.

    TrainingError names the newest checkpoint of `store` where the disk is full.
    """

    def __init__(
        self, folder: Path, progress: Progress, reporter: Lines | None, store: CheckpointStore
    ) -> None:
        """Name the files, which continue after the steps of `progress`; without a `reporter`, keep no records."""
        self.folder, self.progress, self.reporter, self.store = folder, progress, reporter, store
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.reporter is None:
            return self
        with ExitStack() as opened, self.store.writing(self.folder):
            done, due = self.progress.step, self.progress.evaluation_due
            self.log = StepsLog(self.folder / LOG, done, evaluation_due=due)
            opened.callback(self.log.close)
            self.board = opened.enter_context(TensorBoard(self.folder / "tensorboard", done))
            opened.enter_context(self.reporter)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        with self.store.writing(self.folder):
            self._open.__exit__(*exception)

    def step(self, numbers: Mapping[str, float], seconds: float) -> None:
        """Record the numbers of a step, and the seconds of training until now."""
        if self.reporter:
            with self.store.writing(self.folder):
                self.log.write(numbers)
                self.board.step(numbers)
            self.reporter.step({**numbers, "seconds": seconds})

    def warn(self, step: int, warning: str) -> None:
        """Record what looks wrong."""
        if self.reporter:
            with self.store.writing(self.folder):
                self.log.write({"step": step, "warning": warning})
            self.say(f"warning: {warning}")

    def evaluation(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Record the scores on each file of held-out data."""
        if self.reporter:
            with self.store.writing(self.folder):
                self.log.write({"step": step, **scores})
                self.board.evaluation(step, scores)
            self.reporter.evaluation(step, scores)

    def say(self, message: str) -> None:
        """Show a message, which is not kept."""
        if self.reporter:
            self.reporter.say(message)


class StepsLog:
    """`log.jsonl`: a line for each step, evaluation and warning; each once, however often the run was killed.

    Floats read back as they were written.
    """

    def __init__(self, file: Path, done_steps: int, *, evaluation_due: bool = False) -> None:
        """Open the log of a run that resumes after `done_steps`; drop what it will write again.

        `evaluation_due`: the evaluation of the last step done is repeated too.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        last = done_steps if evaluation_due else done_steps + 1
        kept = (line for line in read_lines(file) if line["step"] < last or _stays(line, done_steps))
        aside = file.with_suffix(".writing")
        with aside.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(aside, file)
        self._stream = file.open("a", encoding="utf-8")

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Append one line; a kill can cut the last one, which reading skips."""
        self._stream.write(json.dumps(dict(numbers)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class TensorBoard:
    """Writer of `train/loss`, `train/lr`, ... at each step and of `dev/FILE/METRIC` at each evaluation."""

    def __init__(self, folder: Path, done_steps: int = 0) -> None:
        """Open the folder; what an interrupted run wrote after `done_steps` is hidden.

        Raises TrainingError if tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds
        except ImportError as error:
            raise TrainingError(f"TensorBoard cannot be written ({error}); install tensorboard") from error
        self._writer = SummaryWriter(str(folder), purge_step=done_steps + 1 if done_steps else None)

    def __enter__(self) -> Self:
        self._hook, threading.excepthook = threading.excepthook, self._thread_failed
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # Where the disk is full, closing fails too; the error on its way out says more.
        with suppress(OSError) if kind else nullcontext():
            self.close()
        threading.excepthook = self._hook

    def step(self, numbers: Mapping[str, float]) -> None:
        """Write one step's numbers."""
        for name, value in numbers.items():
            if name in STEP_NUMBERS or name.startswith("loss_"):
                self._writer.add_scalar(f"train/{name}", value, int(numbers["step"]))

    def evaluation(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Write the scores of each file."""
        for file, values in scores.items():
            for metric, value in values.items():
                self._writer.add_scalar(f"dev/{file}/{metric}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Ignore a full disk in the writer's thread: the next number that is written raises it again."""
        is_writer = type(failure.thread).__module__.startswith("tensorboard.")
        if not (is_writer and isinstance(failure.exc_value, OSError)):
            self._hook(failure)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log; nothing where there is none."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return  # cut by a kill: nothing after it was written


def read_steps(file: Path) -> list[dict[str, Any]]:
    """Return the numbers of the steps in a log, of a long one as `bounded` has them."""
    return bounded(line for line in read_lines(file) if _is_step(line))


def bounded(steps: Iterable[dict[str, Any]], most: int = MOST_STEPS) -> list[dict[str, Any]]:
    """Return the numbers of each step; of more than `most` (even) those of equally many consecutive steps together.

    Memory does not grow with the number of steps. Together they are at the last step and its tokens, with the means of
    the other numbers and the speed over all of the steps, so that sums of time and means over a run stay what they were.
    """
    kept: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    size = 1
    for step in steps:
        if len(kept) == most:
            joined: list[dict[str, Any]] = []
            for place in range(0, most, 2):
                joined.append(_together(kept[place : place + 2], joined))
            kept, size = joined, 2 * size
        waiting.append(step)
        if len(waiting) == size:
            kept.append(_together(waiting, kept))
            waiting = []
    return [*kept, _together(waiting, kept)] if waiting else kept


def _together(steps: list[dict[str, Any]], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of consecutive steps as one; `before` are those that come before them."""
    if len(steps) == 1:
        return steps[0]
    names = [name for name in steps[-1] if all(name in step for step in steps)]
    means = {name: sum(step[name] for step in steps) / len(steps) for name in names}
    if "tokens_per_second" in means:
        means["tokens_per_second"] = _speed(steps, before[-1]["tokens"] if before else 0)
    return {**means, **{name: steps[-1][name] for name in ("step", "tokens") if name in means}}


def _speed(steps: list[dict[str, Any]], tokens: float) -> float:
    """Return the tokens a second over consecutive steps; `tokens` are those of the run before them."""
    seconds, done = 0.0, tokens
    for step in steps:
        read, done = step["tokens"] - done, step["tokens"]
        seconds += read / step["tokens_per_second"] if step["tokens_per_second"] else 0.0
    return (done - tokens) / seconds if seconds else 0.0


def _stays(line: Mapping[str, Any], done_steps: int) -> bool:
    return line["step"] == done_steps and (_is_step(line) or "warning" in line)


def _is_step(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("loss"), float)  # under the name of a held-out file there are scores
