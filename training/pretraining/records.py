"""What a run tells of its steps: to the person who waits, to `log.jsonl`, to TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from training.core.checkpoints import CheckpointStore
from training.core.progress import Reporter
from training.core.tensorboard import TensorBoard
from training.pretraining.steps_log import StepsLog


class Records:
    """Kept by the process that leads; used as a context manager, after whose end nothing more is told."""

    def __init__(self, folder: Path, done_steps: int, reporter: Reporter, store: CheckpointStore) -> None:
        """Open what is in the run's folder for going on after `done_steps`.

        Here and later, TrainingError names the newest checkpoint of `store` where the disk is full.
        """
        self.folder, self.reporter, self.store = folder, reporter, store
        with store.writing(folder):
            self.log = StepsLog(folder / "log.jsonl", done_steps)
            self.board = TensorBoard(folder / "tensorboard", done_steps)

    def __enter__(self) -> Self:
        self.board.__enter__()
        self.reporter.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.reporter.__exit__(*exception)
        with self.store.writing(self.folder):
            self.board.__exit__(*exception)
            self.log.close()

    def step(self, numbers: Mapping[str, float], seconds: float) -> None:
        """Tell the numbers of a step, and how many seconds of training there were until now."""
        with self.store.writing(self.folder):
            self.log.write(numbers)
            self.board.step(numbers)
        self.reporter.step({**numbers, "seconds": seconds})

    def warn(self, step: int, warning: str) -> None:
        """Tell what looks wrong."""
        with self.store.writing(self.folder):
            self.log.write({"step": step, "warning": warning})
        self.reporter.say(f"warning: {warning}")

    def look(self, step: int, scores: Mapping[str, float]) -> None:
        """Tell the scores of held-out text."""
        with self.store.writing(self.folder):
            self.log.write({"step": step, "held_out": dict(scores)})
            self.board.evaluation(step, {"held_out": scores})
        self.reporter.evaluation(step, {"held_out": scores})
