"""Checkpoints of a model in parts: every process writes its own by torch.distributed.checkpoint while training goes on."""

import logging
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor

from training.engine.checkpoints import CheckpointStore
from training.engine.distributed import Processes
from training.engine.state import STATE


class ShardedSaver:
    """Writes one checkpoint at a time, in the background; used as a context manager. Every process calls each method.

        FOLDER/step-00000200/shard-00002-model-00001-of-00001.safetensors   parts of weights and moments, a file a process

    Parts are written aside. The leader, once all of them are on the disk, adds `state.json` and the manifest of hashes and
    renames: only then is there a checkpoint.
    """

    def __init__(self, store: CheckpointStore, processes: Processes) -> None:
        """Open a way between the processes of their own: messages of a save must not mix with those of the steps."""
        self.store, self.processes = store, processes
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[None] | None = None
        # It tells of every plan and file.
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.WARNING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for what is being written; an error on its way out says more than one of the writing."""
        self._thread.shutdown()

    def start(self, step: int, parts: dict[str, Tensor], description: str) -> None:
        """Copy the parts that this process has and begin to write them, after the end of the save before.

        `description` is the content of `state.json`. Raises TrainingError where the save before failed.
        """
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # takes a second
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.finish()
        aside = self.store.folder / f".step-{step:08d}.parts"
        if self.processes.leads:
            shutil.rmtree(aside, ignore_errors=True)
            with self.store.writing(aside):
                aside.mkdir(parents=True)
        self.processes.wait()
        writer = HuggingFaceStorageWriter(str(aside), save_distributed=True)
        written = async_save(parts, storage_writer=writer, process_group=self._group)
        assert isinstance(written, Future)  # the copy is made by now
        self._running = self._thread.submit(self._complete, written, step, aside, description)

    def finish(self) -> None:
        """Wait until the checkpoint is there. Raises TrainingError where the disk is full or cannot be written."""
        from torch.distributed.checkpoint.api import CheckpointException

        running, self._running = self._running, None
        if running is None:
            return
        with self.store.writing(self.store.folder):
            try:
                running.result()
            except CheckpointException as error:  # no Exception: what the processes met is inside
                raise next(failure for failure, _ in error.failures.values()) from error

    def _complete(self, written: "Future[Any]", step: int, aside: Path, description: str) -> None:
        written.result()  # all processes have written
        if self.processes.leads:

            def fill(folder: Path) -> None:
                for part in aside.iterdir():
                    part.rename(folder / part.name)
                (folder / STATE).write_text(description, encoding="utf-8")

            self.store.save(step, fill)
