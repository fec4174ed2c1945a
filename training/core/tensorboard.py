"""Numbers of a run for TensorBoard, whose writer is imported only when a run begins."""

import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from bert.errors import TrainingError

STEP_NUMBERS = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")


class TensorBoard:
    """Writes `train/loss`, `train/lr`, ... each step and `dev/FILE/METRIC` each evaluation."""

    def __init__(self, folder: Path, done_steps: int = 0) -> None:
        """Open the folder; what an interrupted run wrote after `done_steps` is hidden.

        Raises TrainingError if tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            reason = f"TensorBoard cannot be written ({error}); install tensorboard, or switch it off"
            raise TrainingError(reason) from error
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
            if name in STEP_NUMBERS or name.startswith("loss_"):  # the parts of a loss that is a sum
                self._scalar(f"train/{name}", value, int(numbers["step"]))

    def evaluation(self, step: int, scores: Mapping[str, Any]) -> None:
        """Write scores, {metric: value} or {file: {metric: value}}."""
        for name, value in scores.items():
            if isinstance(value, Mapping):
                for metric, score in value.items():
                    self._scalar(f"dev/{name}/{metric}", score, step)
            else:
                self._scalar(f"dev/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """Ignore a full disk in the writer's thread: the next number that is written raises it again."""
        if not (
            isinstance(failure.exc_value, OSError)
            and type(failure.thread).__module__.startswith("tensorboard.")
        ):
            self._hook(failure)

    def _scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)
