"""A run around its steps: saves, evaluations, stops and records, the same for fine-tuning and pretraining."""

import logging
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from bert.errors import TrainingError
from training.engine.checkpoints import CheckpointStore
from training.engine.device import StepNumbers
from training.engine.progress import make_reporter
from training.engine.records import Records
from training.engine.sharded import ShardedSaver
from training.engine.signals import RunStopped, on_stop
from training.engine.state import describe, gather_state, parts_of_state, read_state, write_state
from training.engine.train_loop import TrainLoop

CHECKPOINTS = "checkpoints"
"""Name of the folder of saves, in that of the run; a stopped run resumes from the newest."""
logger = logging.getLogger(__name__)


class Trainer(ABC):
    """One start of a run; it resumes from the newest whole checkpoint if there is one.

    A save goes before the evaluation of its step: whatever happens there, the steps are not lost.
    """

    def __init__(
        self,
        loop: TrainLoop,
        store: CheckpointStore,
        output_dir: Path,
        fingerprint: Mapping[str, Any],
        *,
        resume: bool,
    ) -> None:
        """Fill the loop from the newest checkpoint; without `resume`, delete all checkpoints.

        `fingerprint` is what a run cannot change.
        """
        self.loop, self.store, self.output_dir, self.fingerprint = loop, store, output_dir, fingerprint
        self.processes = loop.processes
        self._sharded = ShardedSaver(store, loop.processes) if loop.sharded is not None else None
        if resume:
            self._resume()
        elif self.processes.leads:
            store.clear()
        if not self.processes.agree(loop.state.step):
            raise TrainingError(
                f"the processes resume from different steps, this one from {loop.state.step}: "
                f"output_dir ({output_dir}) has to be the same folder on all nodes"
            )
        self.saved_step = loop.state.step
        self._signal: int = signal.SIGTERM
        """Signal that stopped the run. One process receives it, and the others stop too."""
        self._interruptible = False

    @abstractmethod
    def due(self, step: int) -> tuple[bool, bool]:
        """Tell whether an evaluation and a save are due after a step."""

    @abstractmethod
    def evaluate(self) -> bool:
        """Score held-out data; return whether to end the run."""

    @abstractmethod
    def finish(self) -> None:
        """Do what is left after the last step."""

    def on_step(self, numbers: StepNumbers) -> None:
        """Record the numbers of a step, which waits for them."""
        self.records.step(numbers, numbers.seconds)

    @property
    def is_over(self) -> bool:
        """True where a resumed run has no steps left."""
        return self.loop.is_over

    def run(self) -> None:
        """Train to the end. Raises RunStopped at SIGTERM or Ctrl-C, after a save."""
        schedule, done = self.loop.schedule, self.loop.state
        reporter = None
        if self.processes.leads:
            reporter = make_reporter(
                schedule.total_steps, done.step, done_tokens=done.tokens, total_s=schedule.total_s
            )
        records = Records(self.output_dir, done, reporter, self.store)
        saver = self._sharded or nullcontext()
        with closing(self.loop.data), records as self.records, on_stop(self._ask), saver:
            self._train()
            stops = self.loop.stopping or self._is_stop_asked()
            if stops:
                self._save()
            if self._sharded:
                self._sharded.finish()
            if stops:
                raise self._stopped()
            self.finish()

    def _is_stop_asked(self) -> bool:
        """Tell all processes whether one of them was asked to stop after the last step."""
        return bool(self.processes.sum([float(self.loop.stop_asked)])[0])

    def _train(self) -> None:
        loop, state = self.loop, self.loop.state
        if (state.evaluation_due and self._evaluate()) or self.is_over:
            return
        taken: deque[StepNumbers] = deque()
        for numbers in loop.steps():
            taken.append(numbers)
            evaluate, save = self.due(state.step)
            # A GPU is not waited for at each step, but nothing is saved after a loss that is no number.
            waits = evaluate or save or loop.saving or loop.stopping
            while len(taken) > (0 if waits else loop.lag):
                self.on_step(taken.popleft())
            state.evaluation_due = evaluate
            if save or loop.saving or loop.stopping:
                self._save()
            if evaluate and not loop.stopping and self._evaluate():
                return
        for numbers in taken:
            self.on_step(numbers)

    def _evaluate(self) -> bool:
        with self.interruptible():
            stop = self.evaluate()
        self.loop.state.evaluation_due = False
        return stop

    def _save(self) -> None:
        """Write a checkpoint of this step, if there is none yet; of a model in parts begin to write it."""
        loop = self.loop
        if self.saved_step == loop.state.step:
            return
        self.saved_step = loop.state.step
        if self._sharded:
            parts = parts_of_state(loop.objective, loop.optimizer)
            self._sharded.start(loop.state.step, parts, describe(loop.state, self.fingerprint))
            return
        if self.processes.leads:
            weights, moments = gather_state(loop.objective, loop.optimizer)
            self.store.save(
                loop.state.step,
                lambda to: write_state(to, weights, moments, loop.state, self.fingerprint),
            )
        self.processes.wait()

    def _resume(self) -> None:
        newest, loop = self.store.newest(), self.loop
        if newest is not None:
            loop.state = read_state(newest, loop.objective, loop.optimizer, self.fingerprint)
            logger.info("resuming from step %s (%s)", self._place, newest)
            if loop.state.step > loop.schedule.total_steps > 0:
                logger.warning(
                    "the run is longer already than the %s steps asked for: nothing is trained",
                    f"{loop.schedule.total_steps:,}",
                )

    @property
    def _place(self) -> str:
        step, total = self.loop.state.step, self.loop.schedule.total_steps
        return f"{step:,} of {total:,}" if total else f"{step:,}"

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a stop end an evaluation at once, where the steps before it are saved.

        Several processes wait for one another in it, so a stop of theirs waits for its end.
        """
        self._interruptible = self.processes.world == 1 and self.saved_step == self.loop.state.step
        try:
            if self.loop.stop_asked and self._interruptible:
                raise self._stopped()
            yield
        finally:
            self._interruptible = False

    def _ask(self, number: int) -> None:
        self.loop.stop_asked, self._signal = True, number
        if self._interruptible:
            raise self._stopped()

    def _stopped(self) -> RunStopped:
        message = f"stopped at step {self._place}; the same command resumes from there"
        return RunStopped(message if self.processes.leads else "", self._signal)
