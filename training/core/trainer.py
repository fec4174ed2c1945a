"""A loop with its evaluations, saves, messages and report."""

import logging
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert.files import put_back
from bert.tasks.spec import TaskSpec
from training.core import model as models
from training.core.checkpoints import CheckpointStore
from training.core.progress import Reporter, format_scores
from training.core.signals import RunStopped, on_stop
from training.core.state import Progress, load_state, save_state
from training.core.tensorboard import TensorBoard
from training.core.train_loop import Loop, fingerprint
from training.data.datasets import Source
from training.data.summary import FileSummary
from training.report import DevFile, RunReport, data_warnings, result_warnings, write_report
from training.report.error_analysis import Baseline
from training.settings import FinetuneSettings
from training.tasks.base import Evaluation, FinetuneTask

CHECKPOINTS = "checkpoints"
"""Folder, in that of the run, of what a stopped run goes on from."""
logger = logging.getLogger(__name__)


class Run:
    """What happens around the steps. `best/` is the checkpoint to use, `checkpoints/` what a stopped run goes on from."""

    def __init__(
        self,
        settings: FinetuneSettings,
        task: FinetuneTask,
        loop: Loop,
        dev: list[Source],
        test: Sequence[Source] = (),
        data: Sequence[FileSummary] = (),
        recipe: str = "",
    ) -> None:
        """Go on from the newest save if there is one and the settings ask for it.

        `data` and `recipe` are for the report.
        """
        self.data, self.recipe = data, recipe
        self.settings, self.task, self.loop, self.dev, self.test = settings, task, loop, dev, test
        self.best = settings.output_dir / "best"
        self.store = CheckpointStore(settings.output_dir / CHECKPOINTS)
        self.dev_files: list[DevFile] = []
        self.metric = settings.metric or task.metric
        self._baselines: dict[str, Baseline] = {}
        self._looking = False
        self._signal: int = signal.SIGTERM
        put_back(self.best)
        if settings.resume:
            self._go_on()
        else:
            self.store.clear()
        commands = loop.progress.commands
        if settings.start_from and not commands:  # what made the weights that the run starts from comes first
            commands += filter(None, [TaskSpec.read(settings.start_from).command])
        if task.spec.command and commands[-1:] != [task.spec.command]:
            commands.append(task.spec.command)
        task.spec = replace(task.spec, command="\n".join(commands))

    def _go_on(self) -> None:
        newest, loop = self.store.newest(), self.loop
        if newest is not None:
            loop.progress = load_state(newest, loop.trained, loop.optimizer, fingerprint(self.settings))
            loop.progress.epochs = loop.epochs
            logger.info("going on from step %d of %d", loop.progress.step, loop.total_steps)

    def run(self, reporter: Reporter) -> Path:
        """Train, then score the best checkpoint on all dev data; return its folder.

        Raises RunStopped at SIGTERM or Ctrl-C, after a save.
        """
        done = self.loop.progress.step
        with (
            reporter,
            TensorBoard(self.settings.output_dir / "tensorboard", done) as board,
            on_stop(self._ask),
        ):
            self.sinks = (reporter, board)
            self._train()
            if self.best.is_dir():
                models.restore(self.best, self.loop.model, self.loop.trained)
            reporter.say(
                "scoring the best checkpoint on all dev data ..." if self.dev else "no dev data to score"
            )
            self._score(limit=0)
            self._score_test()
            models.save(self.best, self.loop.model, self.loop.trained, self.settings, self.task)
            for file in self.dev_files:
                reporter.say(beside_baseline(file, self.metric))
            warnings = self._warnings()
            for line in warnings:
                reporter.say(f"warning: {line}")
            reporter.say(f"report: {self._report(warnings)}")
            reporter.say(f"checkpoint: {self.best}")
        return self.best

    def _train(self) -> None:
        # A run that was saved, and then stopped in its evaluation, begins with that.
        stop = self.loop.progress.evaluation_due and self._evaluate()
        if not stop and not self._is_over():
            self.loop.run(self._on_step, self._on_mark)
        self._stop_if_asked()

    def _is_over(self) -> bool:
        """Tell whether a run that is gone on with has come to its end, or out of patience, already."""
        progress, patience = self.loop.progress, self.settings.patience
        return progress.step >= self.loop.total_steps or 0 < patience <= progress.worse_evaluations

    def _ask(self, number: int) -> None:
        self.loop.stop_asked, self._signal = True, number
        if self._looking:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.loop.stop_asked:
            step, total = self.loop.progress.step, self.loop.total_steps
            message = f"stopped at step {step:,} of {total:,}; the same command goes on from there"
            raise RunStopped(message, self._signal)

    def _on_step(self, numbers: dict[str, float]) -> None:
        self.loop.progress.history.append(numbers)
        for sink in self.sinks:
            sink.step(numbers)

    def _on_mark(self, evaluate: bool, save: bool) -> bool:
        # The save goes first: whatever happens in an evaluation, the steps before it are not lost.
        self.loop.progress.evaluation_due = evaluate
        if save:
            self._save()
        return evaluate and not self.loop.stop_asked and self._evaluate()

    def _save(self) -> None:
        loop, identity = self.loop, fingerprint(self.settings)
        self.store.save(
            loop.progress.step,
            lambda folder: save_state(folder, loop.trained, loop.optimizer, loop.progress, identity),
        )

    def _evaluate(self) -> bool:
        """Score, keep the best; return whether patience is at its end."""
        progress, score = self.loop.progress, self._score(self.settings.eval_limit)
        progress.evaluation_due = False
        if is_better(score, progress):
            progress.best_score, progress.best_step, progress.worse_evaluations = score, progress.step, 0
            models.save(self.best, self.loop.model, self.loop.trained, self.settings, self.task)
        else:
            progress.worse_evaluations += 1
        return 0 < self.settings.patience <= progress.worse_evaluations

    def _score(self, limit: int) -> float | None:
        """Evaluate each dev file into the task's description; return the mean of the deciding metric.

        None where that is not a number. Without dev data a later checkpoint counts as a better one.
        """
        self.dev_files = []
        values: list[float] = []
        looks = [self._look(source, limit) for source in self.dev]
        tuned: dict[str, Any] = dict(self.task.tune(looks))
        self.task.spec = replace(self.task.spec, **tuned)
        for source, found in zip(self.dev, map(self.task.rescore, looks), strict=True):
            self.dev_files.append(self._scored(source, found))
            values += [round(value, 4) for name, value in found.scores.items() if name == self.metric]
        by_file: dict[str, Any] = {file.name: dict(file.scores) for file in self.dev_files}
        counts = {source.name: len(source.examples[: limit or None]) for source in self.dev}
        self.task.spec = replace(self.task.spec, scores=by_file, counts=counts)
        step = self.loop.progress.step
        if by_file:
            self.loop.progress.evaluations.append({"step": step, "scores": by_file})
            for sink in self.sinks:
                sink.evaluation(step, by_file)
        mean = sum(values) / len(values) if values else math.nan
        return float(step) if not self.dev else None if math.isnan(mean) else mean

    def _look(self, source: Source, limit: int = 0) -> Evaluation:
        """Evaluate one file. The steps are saved by now, so a stop need not wait for the end of it."""
        self._looking = True
        try:
            self._stop_if_asked()
            return self.task.evaluate(self.loop.predict, source.examples[: limit or None])
        finally:
            self._looking = False

    def _score_test(self) -> None:
        """Add the scores of test data, which chose nothing, to the task's description."""
        for source in self.test:
            found, spec = self.task.rescore(self._look(source)), self.task.spec
            file = self._scored(source, found)
            scores = dict(file.scores)
            self.dev_files.append(file)
            counts = {**spec.counts, source.name: len(source.examples)}
            self.task.spec = replace(spec, scores={**spec.scores, source.name: scores}, counts=counts)
            for sink in self.sinks:
                sink.evaluation(self.loop.progress.step, {source.name: scores})

    def _scored(self, source: Source, found: Evaluation) -> DevFile:
        scores = rounded(source.name, found.scores)
        if source.name not in self._baselines:
            self._baselines[source.name] = self.task.baseline(source.examples)
        return DevFile(source.name, scores, found.findings, self._baselines[source.name])

    def _warnings(self) -> list[str]:
        # What starts from trained weights may have little left to learn.
        history = [] if self.settings.start_from else self.loop.progress.history
        return data_warnings(self.data) + result_warnings(self.dev_files, self.metric, history)

    def _report(self, warnings: Sequence[str]) -> Path:
        progress = self.loop.progress
        return write_report(
            self.settings.output_dir / "report",
            RunReport(
                title=f"{self.settings.task} from {self.settings.base}",
                dev=self.dev_files,
                history=progress.history,
                evaluations=progress.evaluations[:-1],
                metric=self.metric,
                best_step=progress.best_step,
                command=self.task.spec.command,
                settings=self.settings.model_dump(mode="json"),
                recipe=self.recipe,
                data=self.data,
                warnings=warnings,
            ),
        )


def score_base(settings: FinetuneSettings, task: FinetuneTask, loop: Loop, dev: list[Source]) -> Path:
    """Score the base as it is and write only its `task.json`: nothing was trained."""
    scores = {}
    for source in dev:
        found = task.evaluate(loop.predict, source.examples)
        scores[source.name] = rounded(source.name, found.scores)
        file = DevFile(source.name, scores[source.name], found.findings, task.baseline(source.examples))
        for line in result_warnings([file], settings.metric or task.metric, []):
            logger.warning("warning: %s", line)
    counts = {source.name: len(source.examples) for source in dev}
    logger.info("%s", format_scores(scores))
    folder = settings.output_dir / "best"
    folder.mkdir(parents=True, exist_ok=True)
    replace(task.spec, scores=scores, counts=counts).write(folder)
    return folder


def beside_baseline(file: DevFile, metric: str) -> str:
    """Return a line with a file's deciding score and the baseline's."""
    reached, baseline = file.scores.get(metric), file.baseline
    said = f"{file.name}: {metric} {'is not a number' if reached is None else f'{reached:.4f}'}"
    if baseline is None or metric not in baseline.scores:
        return said
    return f"{said}; the baseline ({baseline.rule}) has {baseline.scores[metric]:.4f}"


def is_better(score: float | None, progress: Progress) -> bool:
    """Tell whether a score is above the best so far. None, no number, is below any; yet the first one is kept."""
    if progress.best_step == 0:
        return True
    return score is not None and (progress.best_score is None or score > progress.best_score)


def rounded(file: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores with four decimals. What is not a number is left out, with a warning: JSON has no NaN."""
    missing = [name for name, value in scores.items() if math.isnan(value)]
    if missing:
        logger.warning(
            "%s: %s is not a number: all predictions or all labels are alike", file, ", ".join(missing)
        )
    return {name: round(value, 4) for name, value in scores.items() if name not in missing}
