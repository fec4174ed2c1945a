"""Records of a run: `log.jsonl`, TensorBoard, and what the person who waits is shown."""

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from bert.errors import TrainingError
from training.engine.checkpoints import CheckpointStore
from training.engine.progress import Lines
from training.engine.state import RunState

LOG = "log.jsonl"
"""File of the steps' numbers, in the run's folder."""
STEP_NUMBERS = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")
"""Numbers of a step that TensorBoard gets, beside the parts of a loss that is a sum."""
MOST_STEPS = 10_000
"""Steps that a report keeps in memory; of a longer run, every n-th."""


class Records:
    """The leading process's records, used as a context manager; the other processes keep none.

    TrainingError names the newest checkpoint of `store` where the disk is full.
    """

    def __init__(self, folder: Path, state: RunState, reporter: Lines | None, store: CheckpointStore) -> None:
        """Name the files, which continue after the steps of `state`; without a `reporter`, keep no records."""
        self.folder, self.state, self.reporter, self.store = folder, state, reporter, store
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.reporter is None:
            return self
        with ExitStack() as opened, self.store.writing(self.folder):
            done, due = self.state.step, self.state.evaluation_due
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
    """Return the numbers of each step; of more than `most`, those of every n-th step and of the last.

    Memory does not grow with the number of steps. The speed is then that since the kept step before, so that the seconds
    of a run stay what they were.
    """
    # Number of the step, tokens and seconds until then, its numbers.
    kept: list[tuple[int, float, float, dict[str, Any]]] = []
    every, done, seconds = 1, 0.0, 0.0
    for number, step in enumerate(steps, 1):
        tokens, speed = step.get("tokens") or done, step.get("tokens_per_second")
        done, seconds = tokens, seconds + ((tokens - done) / speed if speed else 0.0)
        if kept and kept[-1][0] % every:
            kept.pop()  # it was only the last so far
        if len(kept) == most:
            kept, every = kept[1::2], 2 * every
        kept.append((number, done, seconds, step))
    if every > 1:
        for (_, begun, since, _), (_, done, until, step) in pairwise([(0, 0.0, 0.0, {}), *kept]):
            step["tokens_per_second"] = (done - begun) / (until - since) if until > since else 0.0
    return [step for *_, step in kept]


def _stays(line: Mapping[str, Any], done_steps: int) -> bool:
    return line["step"] == done_steps and (_is_step(line) or "warning" in line)


def _is_step(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("loss"), float)  # under the name of a held-out file there are scores
