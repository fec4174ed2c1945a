"""A fine-tuning around its steps: evaluations, the best checkpoint, messages and the report."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bert.errors import TrainingError
from bert.files import put_back
from bert.nn.heads import BertHead
from bert.tasks.spec import TaskSpec
from training.engine.checkpoints import CheckpointStore
from training.engine.device import StepNumbers
from training.engine.records import LOG, read_steps
from training.engine.state import RunState, gather_weights
from training.engine.train_loop import TrainLoop
from training.engine.trainer import CHECKPOINTS, Trainer
from training.finetuning import model as models
from training.finetuning.ema import Ema
from training.finetuning.scores import (
    HeldOutLoss,
    RecordedLogits,
    beside_baseline,
    conclude,
    dev_file,
    predictor,
)
from training.labelled.sources import Source
from training.labelled.summary import FileSummary
from training.report.checks import data_warnings, result_warnings
from training.report.error_analysis import DevFile
from training.settings import BEST, FinetuneSettings
from training.tasks.base import FinetuneTask


class FinetuneTrainer(Trainer):
    """Trainer of a task: `best/` is the checkpoint to use, `checkpoints/` holds what a stopped run resumes from."""

    def __init__(
        self,
        settings: FinetuneSettings,
        task: FinetuneTask,
        model: BertHead,
        trained: nn.Module,
        loop: TrainLoop,
        dev: list[Source],
        test: Sequence[Source] = (),
        data: Sequence[FileSummary] = (),
        recipe: str = "",
    ) -> None:
        """Resume from the newest save if there is one and the settings ask for it.

        `data` and `recipe` are for the report.
        """
        self.data, self.recipe = data, recipe
        self.settings, self.task, self.dev, self.test = settings, task, dev, test
        self.model, self.trained = model, trained
        self.best = settings.output_dir / BEST
        self.dev_files: list[DevFile] = []
        self.metric = settings.metric or task.metric
        self._losses: dict[str, HeldOutLoss] = {}
        if loop.processes.leads:
            put_back(self.best)
        store = CheckpointStore(settings.output_dir / CHECKPOINTS)
        identity = fingerprint(settings)
        super().__init__(loop, store, settings.output_dir, identity, resume=settings.resume)
        assert settings.epochs is not None
        loop.state.epochs = settings.epochs
        if settings.start_from and dev and loop.state.step == 0:
            loop.state.evaluation_due = True  # trained weights may be the best already
        self.ema = Ema(loop.optimizer, settings.ema, lambda: loop.state.step) if settings.ema else None
        self.predict = predictor(trained, task, self.processes)
        self._note_command()

    def _note_command(self) -> None:
        """Add the command to those of the run; the first is what made the weights of `start_from`."""
        commands, command = self.loop.state.commands, self.task.spec.command
        if self.settings.start_from and not commands:
            commands += filter(None, [TaskSpec.read(self.settings.start_from).command])
        if command and commands[-1:] != [command]:
            commands.append(command)
        self.task.spec = replace(self.task.spec, command="\n".join(commands))

    def due(self, step: int) -> tuple[bool, bool]:
        """Evaluate once an epoch or every few steps, and at the end; save then and where the settings say so."""
        settings = self.settings
        epoch_ended = self.loop.state.position["batch"] == 0
        every, save_every = settings.eval_every_steps, settings.save_every_steps
        evaluate = self.loop.is_over or (step % every == 0 if every else epoch_ended)
        return evaluate, evaluate or bool(save_every and step % save_every == 0)

    @property
    def is_over(self) -> bool:
        """True where a resumed run has no steps left, or no patience."""
        return self.loop.is_over or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.loop.state.worse_evaluations

    def on_step(self, numbers: StepNumbers) -> None:
        """Record the numbers of a step. Raises TrainingError for a loss that is no number."""
        loss, norm, step = numbers["loss"], numbers["grad_norm"], int(numbers["step"])
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainingError(
                f"the loss is {loss} (gradient norm {norm}) at step {step}: "
                f"try a lower learning_rate than {self.settings.learning_rate:g}, or a longer warm-up"
            )
        super().on_step(numbers)

    def evaluate(self) -> bool:
        """Score and keep the best; return True after `patience` evaluations without improvement.

        A tie is not an improvement.
        """
        with self.ema.in_place() if self.ema else nullcontext():
            state = self.loop.state
            score, loss = self._score_dev(self.settings.eval_limit, state.step)
            better = is_better(score, state)
            if better or wins_tie(score, loss, state):
                state.best_score, state.best_loss, state.best_step = score, loss, state.step
                self._save_best()
            state.worse_evaluations = 0 if better else state.worse_evaluations + 1
        return self._is_out_of_patience

    def finish(self) -> None:
        """Score the best checkpoint on all dev and test data, and write the report."""
        say = self.records.say
        if self.best.is_dir():
            models.restore(self.best, self.model, self.trained)
        step = self.loop.state.best_step
        say(
            f"scoring the weights of step {step:,}, the best by {self.metric}, on all dev data ..."
            if self.dev
            else "no dev data to score"
        )
        with self.interruptible():
            self._score_dev(0, step)
            self._score_test(step)
        self._save_best()
        for file in self.dev_files:
            say(beside_baseline(file, self.metric))
        history = read_steps(self.output_dir / LOG)
        # The loss of trained weights need not fall much further.
        losses = [] if self.settings.start_from else history
        warnings = data_warnings(self.data) + result_warnings(self.dev_files, self.metric, losses)
        for line in warnings:
            say(f"warning: {line}")
        if self.processes.leads:
            say(f"report: {self._report(history, warnings)}")
        say(f"checkpoint: {self.best}")

    def _save_best(self) -> None:
        spread = self.loop.sharded is not None
        weights = gather_weights(self.model, keep=self.processes.leads) if spread else None
        if self.processes.leads:
            with self.store.writing(self.best):
                models.save(self.best, self.model, self.trained, self.settings, self.task, weights)
        self.processes.wait()

    def _score_dev(self, limit: int, step: int) -> tuple[float | None, float | None]:
        """Evaluate the weights of a step on each dev file, into the task's description.

        Return the means over the files of the deciding metric and of the loss, None where that is not a number. Without
        dev data a later checkpoint counts as a better one.
        """
        found, losses = [], []
        for source in self.dev:
            logits = RecordedLogits(self.predict)
            found.append(self.task.evaluate(logits, source.examples[: limit or None]))
            losses.append(self._loss_on(source).mean(logits))
        self.dev_files = conclude(self.task, self.dev, found, limit or None)
        values = [
            file.scores.get(self.metric, math.nan)
            for file, each in zip(self.dev_files, found, strict=True)
            if self.metric in each.scores
        ]
        loss, by_file = self._leaders_mean(losses), self.task.spec.scores
        if by_file:
            self.loop.state.evaluations.append({"step": step, "scores": by_file, "loss": loss})
            self.records.evaluation(step, by_file)
        return (_mean(values) if self.dev else float(step)), loss

    def _leaders_mean(self, losses: Sequence[float]) -> float | None:
        """Return the leader's mean, because other CPUs may round differently and would keep another step."""
        share = float(self.processes.leads)
        return _mean(self.processes.sum([share * loss for loss in losses])) if losses else None

    def _loss_on(self, source: Source) -> HeldOutLoss:
        if source.name not in self._losses:
            examples = source.examples[: self.settings.eval_limit or None]
            self._losses[source.name] = HeldOutLoss(self.task, examples)
        return self._losses[source.name]

    def _score_test(self, step: int) -> None:
        """Add the scores of test data, which chose nothing, to the task's description."""
        for source in self.test:
            found = self.task.rescore(self.task.evaluate(self.predict, source.examples))
            spec, file = self.task.spec, dev_file(source.name, found, self.task.baseline(source.examples))
            self.dev_files.append(file)
            scores = {source.name: dict(file.scores)}
            counts = {**spec.counts, source.name: len(source.examples)}
            self.task.spec = replace(spec, scores=spec.scores | scores, counts=counts)
            self.records.evaluation(step, scores)

    def _report(self, history: Sequence[Mapping[str, float]], warnings: Sequence[str]) -> Path:
        from training.report.finetuning import RunReport, write_report

        state = self.loop.state
        return write_report(
            self.settings.output_dir / "report",
            RunReport(
                title=f"{self.settings.task} from {self.settings.base}",
                dev=self.dev_files,
                history=history,
                evaluations=state.evaluations[:-1],
                metric=self.metric,
                best_step=state.best_step,
                command=self.task.spec.command,
                settings=self.settings.model_dump(mode="json"),
                recipe=self.recipe,
                data=self.data,
                warnings=warnings,
            ),
        )


def fingerprint(settings: FinetuneSettings) -> dict[str, Any]:
    """Return the settings that a run cannot change and still be the same run.

    It can be made longer or shorter: the schedule then leads to the new end. What its checkpoints are compared by
    stays: a score of other data, or another score, says nothing of which is best.
    """
    places = {"config", "output_dir", "test", "threads", "resume", "sharding"}
    ends = {"epochs", "max_steps", "patience"}
    rhythm = {"eval_every_steps", "save_every_steps"}
    values: dict[str, Any] = settings.model_dump(mode="json", exclude=places | ends | rhythm)
    return values


def is_better(score: float | None, state: RunState) -> bool:
    """Tell whether a score is above the best so far. None never beats a number; the first evaluation is always kept."""
    if state.best_step == 0 and state.best_score is None:
        return True
    return score is not None and (state.best_score is None or score > state.best_score)


def wins_tie(score: float | None, loss: float | None, state: RunState) -> bool:
    """Return whether the later of two equal scores replaces the earlier: its loss is not higher, or a loss is unknown."""
    if score != state.best_score:
        return False
    return loss is None or state.best_loss is None or loss <= state.best_loss


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean, None where it is not a number."""
    mean = sum(values) / len(values) if values else math.nan
    return None if math.isnan(mean) else mean
