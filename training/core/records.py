"""What a run tells of its steps: to the person who waits, to `log.jsonl`, to TensorBoard."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from training.core.checkpoints import CheckpointStore
from training.core.progress import Reporter
from training.core.state import Progress
from training.core.steps_log import StepsLog
from training.core.tensorboard import TensorBoard

LOG = "log.jsonl"
"""File of the steps' numbers, in the run's folder."""


class Records:
    """The leading process's records, used as a context manager; the other processes keep none.

    TrainingError names the newest checkpoint of `store` where the disk is full.
    """

    def __init__(
        self, folder: Path, progress: Progress, reporter: Reporter, store: CheckpointStore, *, kept: bool
    ) -> None:
        """Open the files in the run's folder after the steps of `progress`; with `kept` false, open nothing."""
        self.folder, self.reporter, self.store, self.kept = folder, reporter, store, kept
        if kept:
            with store.writing(folder):
                self.log = StepsLog(folder / LOG, progress.step, evaluation_due=progress.evaluation_due)
                self.board = TensorBoard(folder / "tensorboard", progress.step)

    def __enter__(self) -> Self:
        if self.kept:
            self.board.__enter__()
        self.reporter.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.reporter.__exit__(*exception)
        if self.kept:
            with self.store.writing(self.folder), ExitStack() as closing:
                closing.callback(self.log.close)
                self.board.__exit__(*exception)

    def step(self, numbers: Mapping[str, float], seconds: float) -> None:
        """Record the numbers of a step, and the seconds of training until now."""
        if self.kept:
            with self.store.writing(self.folder):
                self.log.write(numbers)
                self.board.step(numbers)
        self.reporter.step({**numbers, "seconds": seconds})

    def warn(self, step: int, warning: str) -> None:
        """Record what looks wrong."""
        if self.kept:
            with self.store.writing(self.folder):
                self.log.write({"step": step, "warning": warning})
        self.reporter.say(f"warning: {warning}")

    def evaluation(self, step: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Record the scores on each file of held-out data."""
        if self.kept:
            with self.store.writing(self.folder):
                self.log.write({"step": step, **scores})
                self.board.evaluation(step, scores)
        self.reporter.evaluation(step, scores)
