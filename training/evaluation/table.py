"""The table: rows are checkpoints, columns tasks, cells the mean and deviation over seeds. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any


@dataclass(slots=True)
class Cell:
    """One checkpoint on one task: scores by seed, and the reasons of failed runs."""

    metric: str = ""
    scores: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None before the first."""
        return fmean(self.scores.values()) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); None of fewer than two seeds."""
        return stdev(self.scores.values()) if len(self.scores) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return the same as numbers, unrounded."""
        return {
            "metric": self.metric,
            "mean": self.mean,
            "sd": self.deviation,
            "n": len(self.scores),
            "scores": {str(seed): score for seed, score in sorted(self.scores.items())},
            "failed": {str(seed): reason for seed, reason in sorted(self.failed.items())},
        }

    def __str__(self) -> str:
        """Hundredths, as published tables have them: "91.3 ± 0.4 (3)"."""
        failed = f" {len(self.failed)} failed" if self.failed else ""
        if self.mean is None:
            return failed.strip()
        spread = "" if self.deviation is None else f" ± {100 * self.deviation:.1f}"
        return f"{100 * self.mean:.1f}{spread} ({len(self.scores)}){failed}"


Cells = Mapping[tuple[str, str], Cell]
"""Cell of each row and task."""
NOTE = "Mean ± standard deviation over seeds, times 100, on held-out data; in brackets the number of runs."


def average(cells: Cells, row: str, tasks: Sequence[str]) -> float | None:
    """Mean of a row's task means; None where one is missing."""
    means = [cells[row, name].mean for name in tasks]
    known = [mean for mean in means if mean is not None]
    return fmean(known) if len(known) == len(means) else None


def as_markdown(cells: Cells, rows: Sequence[str], tasks: Sequence[str]) -> str:
    """Return the table, its columns aligned, as it is printed too."""
    several = len(tasks) > 1
    metrics = {name: next((cells[row, name].metric for row in rows), "") for name in tasks}
    lines = [["checkpoint", *(f"{name} {metrics[name]}".strip() for name in tasks), *["average"] * several]]
    for row in rows:
        mean = average(cells, row, tasks)
        ends = ["" if mean is None else f"{100 * mean:.1f}"] * several
        lines.append([row, *(str(cells[row, name]) for name in tasks), *ends])
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        for line in (escaped[0], rule, *escaped[1:])
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded) + f"\n{NOTE}\n"


def as_json(cells: Cells, rows: Sequence[str], tasks: Sequence[str]) -> dict[str, Any]:
    """Return the same as numbers, unrounded."""
    return {
        row: {
            "average": average(cells, row, tasks),
            "tasks": {name: cells[row, name].as_json() for name in tasks},
        }
        for row in rows
    }
