"""A loop with its evaluations, saves, messages and report."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from training import model as models
from training.loop import Loop, fingerprint
from training.progress import Reporter, format_scores
from training.report import DevFile, RunReport, write_report
from training.settings import FinetuneSettings
from training.sources import Source
from training.state import load_state, save_state
from training.tasks.base import FinetuneTask
from training.tensorboard import TensorBoard

logger = logging.getLogger(__name__)


class Run:
    """What happens around the steps. `best/` is the checkpoint to use, `last/` what a killed run goes on from."""

    def __init__(
        self,
        settings: FinetuneSettings,
        task: FinetuneTask,
        loop: Loop,
        dev: list[Source],
        test: Sequence[Source] = (),
    ) -> None:
        """Go on from the last save if there is one and the settings ask for it."""
        self.settings, self.task, self.loop, self.dev, self.test = settings, task, loop, dev, test
        self.last, self.best = settings.output_dir / "last", settings.output_dir / "best"
        self.dev_files: list[DevFile] = []
        self.metric = settings.metric or task.metric
        if settings.resume:
            found = load_state(self.last, loop.trained, loop.optimizer, fingerprint(settings))
            if found:
                loop.progress = found
                logger.info("going on from step %d of %d", found.step, loop.total_steps)

    def run(self, reporter: Reporter) -> Path:
        """Train, then score the best checkpoint on all dev data; return its folder."""
        progress = self.loop.progress
        with reporter, TensorBoard(self.settings.output_dir / "tensorboard", progress.step) as board:
            self.sinks = (reporter, board)
            if not self._is_over():
                self.loop.run(self._on_step, self._on_mark)
            if self.best.is_dir():
                models.restore(self.best, self.loop.model, self.loop.trained)
            reporter.say(
                "scoring the best checkpoint on all dev data ..." if self.dev else "no dev data to score"
            )
            self._score(limit=0)
            self._score_test()
            models.save(self.best, self.loop.model, self.loop.trained, self.settings, self.task)
            reporter.say(f"report: {self._report()}")
            reporter.say(f"checkpoint: {self.best}")
        return self.best

    def _is_over(self) -> bool:
        """Tell whether a run that is gone on with has come to its end, or out of patience, already."""
        progress, patience = self.loop.progress, self.settings.patience
        return progress.step >= self.loop.total_steps or 0 < patience <= progress.worse_evaluations

    def _on_step(self, numbers: dict[str, float]) -> None:
        self.loop.progress.history.append(numbers)
        for sink in self.sinks:
            sink.step(numbers)

    def _on_mark(self, evaluate: bool, save: bool) -> bool:
        stop = evaluate and self._evaluate()
        if save:
            self._save_last()
        return stop

    def _save_last(self) -> None:
        loop = self.loop
        save_state(self.last, loop.trained, loop.optimizer, loop.progress, fingerprint(self.settings))

    def _evaluate(self) -> bool:
        """Score, keep the best; return whether patience is at its end."""
        progress, score = self.loop.progress, self._score(self.settings.eval_limit)
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step, progress.worse_evaluations = score, progress.step, 0
            models.save(self.best, self.loop.model, self.loop.trained, self.settings, self.task)
        else:
            progress.worse_evaluations += 1
        return 0 < self.settings.patience <= progress.worse_evaluations

    def _score(self, limit: int) -> float:
        """Evaluate each dev file into the task's description; return the mean of the deciding metric.

        Without dev data a later checkpoint counts as a better one.
        """
        self.dev_files = []
        tuned: dict[str, Any] = {}
        for source in self.dev:
            found = self.task.evaluate(self.loop.predict, source.examples[: limit or None])
            scores = {name: round(value, 4) for name, value in found.scores.items()}
            self.dev_files.append(DevFile(source.name, scores, found.findings))
            tuned |= found.tuned
        by_file: dict[str, Any] = {file.name: dict(file.scores) for file in self.dev_files}
        self.task.spec = replace(self.task.spec, scores=by_file, **tuned)
        step = self.loop.progress.step
        if by_file:
            self.loop.progress.evaluations.append({"step": step, "scores": by_file})
            for sink in self.sinks:
                sink.evaluation(step, by_file)
        values = [scores[self.metric] for scores in by_file.values()]
        return sum(values) / len(values) if values else float(step)

    def _score_test(self) -> None:
        """Add the scores of test data, which chose nothing, to the task's description."""
        for source in self.test:
            found = self.task.evaluate(self.loop.predict, source.examples)
            scores = {name: round(value, 4) for name, value in found.scores.items()}
            self.dev_files.append(DevFile(source.name, scores, found.findings))
            self.task.spec = replace(self.task.spec, scores={**self.task.spec.scores, source.name: scores})
            for sink in self.sinks:
                sink.evaluation(self.loop.progress.step, {source.name: scores})

    def _report(self) -> Path:
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
            ),
        )


def score_base(settings: FinetuneSettings, task: FinetuneTask, loop: Loop, dev: list[Source]) -> Path:
    """Score the base as it is and write only its `task.json`: nothing was trained."""
    scores = {}
    for source in dev:
        found = task.evaluate(loop.predict, source.examples)
        scores[source.name] = {name: round(value, 4) for name, value in found.scores.items()}
    logger.info("%s", format_scores(scores))
    folder = settings.output_dir / "best"
    folder.mkdir(parents=True, exist_ok=True)
    replace(task.spec, scores=scores).write(folder)
    return folder
