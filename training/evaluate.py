"""A table of what checkpoints reach when they are fine-tuned, over tasks and seeds: what `bert-evaluate` does."""

import logging
import os
import shutil

from bert.errors import BertError, ConfigError, TrainingError
from bert.files import atomic_write
from training.evaluation.runs import (
    EvaluationResult,
    EvaluationRun,
    Finetune,
    carry_out,
    finished,
    plan,
    write_json,
)
from training.evaluation.settings import EvaluateSettings
from training.evaluation.table import Cell, as_json, as_markdown
from training.finetune import finetune

logger = logging.getLogger(__name__)


class Comparison:
    """The runs, and the table that grows with them."""

    def __init__(self, settings: EvaluateSettings, command: str = "", finetune: Finetune = finetune) -> None:
        """Plan all runs and read the results of those that are finished; nothing is trained yet.

        Raises ConfigError, CheckpointError or TrainingError for what cannot start or go on.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("bert-evaluate runs in one process: start it without torchrun")
        self.settings, self.command, self._finetune = settings, command, finetune
        self.runs = plan(settings)
        self.rows = list(dict.fromkeys(run.row for run in self.runs))
        self.tasks = list(settings.tasks)
        self.cells = {(row, name): Cell() for row in self.rows for name in self.tasks}
        if not settings.resume:
            for run in self.runs:
                shutil.rmtree(run.settings.output_dir, ignore_errors=True)
        self.waiting: list[EvaluationRun] = []
        for run in self.runs:
            if result := finished(run):
                self._note(run, result)
            else:
                self.waiting.append(run)

    def run(self) -> str:
        """Carry out the runs that are left, with the table on disk after each; return it as Markdown."""
        if done := len(self.runs) - len(self.waiting):
            logger.info("%d of %d runs were finished before", done, len(self.runs))
        for number, run in enumerate(self.waiting, done + 1):
            logger.info("run %d of %d: %s", number, len(self.runs), run)
            self._carry_out(run)
            self._write()
        return self._write()

    def raise_failures(self) -> None:
        """Raise TrainingError if some runs could not be carried out."""
        if failed := sum(len(cell.failed) for cell in self.cells.values()):
            file = self.settings.output_dir / "table.json"
            raise TrainingError(f"{failed} of {len(self.runs)} runs failed, as {file} says")

    def _carry_out(self, run: EvaluationRun) -> None:
        try:
            result = carry_out(run, self._finetune, self.command, self.settings.keep_checkpoints)
        except BertError as error:  # one seed that diverges, or data that cannot be read; the others go on
            logger.warning("%s: %s", run, error)
            self.cells[run.row, run.task].failed[run.seed] = str(error)
        else:
            self._note(run, result)

    def _note(self, run: EvaluationRun, result: EvaluationResult) -> None:
        cell = self.cells[run.row, run.task]
        cell.metric, cell.scores[run.seed] = result.metric, result.score

    def _write(self) -> str:
        folder, table = self.settings.output_dir, as_markdown(self.cells, self.rows, self.tasks)
        heading = f"# Fine-tuned scores\n\n```\n{self.command}\n```\n\n" if self.command else ""
        content = {
            "command": self.command,
            "settings": self.settings.model_dump(mode="json"),
            "checkpoints": as_json(self.cells, self.rows, self.tasks),
        }
        write_json(folder / "table.json", content)
        atomic_write(folder / "table.md", heading + table)
        return table
