"""A pretraining run around its steps: checkpoints, looks at held-out text, warnings, the report."""

import logging
import math
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert.errors import TrainingError
from bert.tokenizer import Tokenizer
from training.core.checkpoints import CheckpointStore, step_of
from training.core.distributed import Processes
from training.core.progress import Reporter
from training.core.signals import on_stop
from training.corpus.shards import Corpus
from training.pretraining import state
from training.pretraining.export import save_model
from training.pretraining.health_monitor import HealthMonitor
from training.pretraining.loop import PretrainLoop
from training.pretraining.mfu import matmul_peak, utilisation
from training.pretraining.records import Records
from training.pretraining.settings import PretrainSettings
from training.pretraining.validation import HeldOut, evaluate, unigram_entropy

logger = logging.getLogger(__name__)


class PretrainRun:
    """One start of a run; it goes on from the newest whole checkpoint if there is one."""

    def __init__(
        self,
        settings: PretrainSettings,
        loop: PretrainLoop,
        corpus: Corpus,
        held_out: list[Any],
        processes: Processes,
        fingerprint: dict[str, Any],
    ) -> None:
        """Find the checkpoint and fill the loop from it."""
        self.settings, self.loop, self.corpus, self.held_out = settings, loop, corpus, held_out
        self.processes, self.fingerprint = processes, fingerprint
        self.tokenizer = Tokenizer.load(corpus.tokenizer_folder)
        self.store = CheckpointStore(settings.output_dir / "checkpoints", settings.keep_checkpoints)
        if settings.resume:
            self._go_on()
        elif processes.leads:
            self.store.clear()
        if not processes.agree(loop.progress.step):
            raise TrainingError(
                f"the processes go on from different steps, this one from {loop.progress.step}: "
                f"output_dir ({settings.output_dir}) has to be the same folder on all nodes"
            )
        self.saved_step = loop.progress.step
        self.last_look: HeldOut | None = None
        self.last_look_step = -1
        self.signal: int = signal.SIGTERM
        """Signal that stopped the run. One process receives it, and the others stop too."""
        self._next_save_s = time.monotonic() + 60 * settings.save_every_minutes
        self._speed = Utilisation(settings, loop, processes)

    def _go_on(self) -> None:
        newest = self.store.newest()
        if newest is None:
            return
        loop = self.loop
        loop.progress = state.read(newest, loop.objective, loop.optimizer, self.fingerprint)
        if self.processes.leads:
            logger.info("going on from step %d (%s)", step_of(newest), newest)

    def run(self, reporter: Reporter) -> bool:
        """Train to the end, or until asked to stop; return whether the end was reached."""
        loop, settings = self.loop, self.settings
        started = loop.progress.step
        names = loop.objective.weights
        watch = HealthMonitor(
            # A distillation without the words themselves has no loss to compare with a blind guess.
            self.corpus.vocab_size if len(names) == 1 or "mlm" in names else math.inf,
            warmup_ratio=settings.warmup_ratio,
            total_steps=settings.max_steps,
            unigram_entropy=unigram_entropy(self.held_out) or None,
        )
        with (
            closing(loop.batches),
            self._opened(started, reporter) as self._records,
            on_stop(self._ask),
        ):
            phase = loop.progress.phase
            for numbers in loop.steps():
                if loop.progress.phase != phase:
                    phase = loop.progress.phase
                    watch.restart()
                save_asked = bool(numbers.pop("stop") or numbers.pop("save"))
                self._speed.add_to(numbers)
                self._tell(numbers, watch)
                self._mark(int(numbers["step"]), save_asked)
            self._save()
            if loop.is_over:
                self._look()
        return loop.is_over

    def _opened(self, started: int, reporter: Reporter) -> AbstractContextManager[Records | None]:
        if not self.processes.leads:
            return nullcontext()
        return Records(self.settings.output_dir, started, reporter, self.store)

    def _ask(self, number: int) -> None:
        self.loop.stop_asked, self.signal = True, number

    def _tell(self, numbers: Mapping[str, float], watch: HealthMonitor) -> None:
        """Record a step and what looks wrong; every process watches, so that all stop at a loss that is no number."""
        if self._records:
            self._records.step(numbers, self.loop.progress.seconds)
        warning = watch.check(numbers, self.loop.done)
        if warning and self._records:
            self._records.warn(int(numbers["step"]), warning)

    def _mark(self, step: int, save_asked: bool) -> None:
        """Save and look where it is time; the clock's wish reaches every process with the next step's numbers."""
        settings = self.settings
        # First the look: a run that goes on from a checkpoint does not look again at the step that it is of.
        if settings.eval_every_steps and step % settings.eval_every_steps == 0:
            self._look()
        if save_asked or (settings.save_every_steps and step % settings.save_every_steps == 0):
            self._save()
            self._next_save_s = time.monotonic() + 60 * settings.save_every_minutes
        if settings.save_every_minutes and self.processes.leads:
            self.loop.save_asked = time.monotonic() >= self._next_save_s

    def _save(self) -> None:
        """Write a checkpoint of this step, if there is none yet."""
        loop = self.loop
        if self.saved_step == loop.progress.step:
            return
        weights = state.gather_weights(loop.objective)
        states = state.gather_optimizer(loop.objective, loop.optimizer)
        if self.processes.leads:
            self.store.save(
                loop.progress.step,
                lambda folder: state.write(folder, weights, states, loop.progress, self.fingerprint),
            )
        self.processes.wait()
        self.saved_step = loop.progress.step

    def _look(self) -> None:
        """Score held-out text, once a step."""
        step = self.loop.progress.step
        if not self.held_out or self.last_look_step == step:
            return
        found = evaluate(self.loop.objective, self.held_out, self.tokenizer.pad_id, bf16=self.loop.bf16)
        self.last_look, self.last_look_step = found, step
        scores = found.scores()
        if self._records and scores:  # left to right: no head tells masked words
            self._records.look(step, scores)

    def save_model(self, folder: Path, command: str) -> dict[str, Tensor]:
        """Write the model as a checkpoint of the ecosystem's format and return all weights, whole and on the CPU.

        Every process must call it.
        """
        weights = state.gather_weights(self.loop.objective)
        if self.processes.leads:
            scores = self.last_look.scores() if self.last_look else {}
            with self.store.writing(folder):
                save_model(
                    folder, self.loop.objective, weights, self.tokenizer, self.settings, scores, command
                )
        self.processes.wait()
        return weights


class Utilisation:
    """The share of the machine's measured peak that a run uses."""

    def __init__(self, settings: PretrainSettings, loop: PretrainLoop, processes: Processes) -> None:
        """Measure the peak of this process's device; all processes are taken to have the same."""
        dtype = torch.bfloat16 if loop.bf16 else torch.float32
        self.peak = matmul_peak(processes.device, dtype) * processes.world
        self.objective, self.rate = loop.objective, settings.masking.rate

    def add_to(self, numbers: dict[str, float]) -> None:
        """Add `mfu`, a share from 0 to 1."""
        length = numbers.pop("mean_length")
        flops = self.objective.flops_per_token(length, self.rate)
        numbers["mfu"] = utilisation(numbers["tokens_per_second"], flops, self.peak)
