"""What a report is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from training.data.summary import FileSummary
from training.report.error_analysis import Baseline, Findings

CURVE_POINTS = 500
"""Steps of the history that report.json keeps, evenly spaced."""


@dataclass(frozen=True)
class DevFile:
    """One held-out file, scored by the checkpoint that is kept."""

    name: str
    scores: Mapping[str, float]
    findings: Findings | None = None
    baseline: Baseline | None = None


@dataclass(frozen=True)
class RunReport:
    """All that a report says of one run.

    `history`: {"step", "tokens", "loss", "lr", "tokens_per_second"} a step, tokens from the start of the run.
    `evaluations`: {"step", "scores"}, the scores {metric: value} or {file: {metric: value}}.
    """

    title: str
    dev: Sequence[DevFile]
    history: Sequence[Mapping[str, float]] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    metric: str | None = None
    """The score that chose the best checkpoint."""
    best_step: int | None = None
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    """A line with the learning rate, the epochs and where they come from."""
    data: Sequence[FileSummary] = ()
    warnings: Sequence[str] = ()


def as_json(report: RunReport) -> dict[str, Any]:
    """Return the content of report.json."""
    step = max(1, -(-len(report.history) // CURVE_POINTS))
    return {
        "title": report.title,
        "command": report.command,
        "metric": report.metric,
        "best_step": report.best_step,
        "recipe": report.recipe,
        "warnings": list(report.warnings),
        "data": [asdict(file) for file in report.data],
        "training": training_summary(report.history),
        "dev": {file.name: _file_json(file) for file in report.dev},
        "evaluations": [dict(evaluation) for evaluation in report.evaluations],
        "history": [dict(point) for point in report.history[::step]],
        "settings": dict(report.settings),
    }


def training_summary(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return steps, tokens, seconds in steps, tokens a second, and the mean loss of the last tenth."""
    if not history:
        return {}
    seconds, done = 0.0, 0.0
    for point in history:
        tokens, done = point["tokens"] - done, point["tokens"]
        seconds += tokens / point["tokens_per_second"] if point.get("tokens_per_second") else 0.0
    last = history[-max(1, len(history) // 10) :]
    return {
        "steps": history[-1]["step"],
        "tokens": history[-1]["tokens"],
        "seconds": round(seconds, 1),
        "tokens_per_second": round(history[-1]["tokens"] / seconds, 1) if seconds else 0.0,
        "final_loss": round(sum(point["loss"] for point in last) / len(last), 5),
    }


def confusion_name(file: str) -> str:
    """Return the picture's name for a held-out file of any name."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in file)
    return f"confusion-{safe}.png"


def _file_json(file: DevFile) -> dict[str, Any]:
    content: dict[str, Any] = {"scores": dict(file.scores)}
    if file.baseline is not None:
        content["baseline"] = {"rule": file.baseline.rule, "scores": _four_decimals(file.baseline.scores)}
    found = file.findings
    if found is not None:
        content |= {
            "examples": found.examples,
            "wrong": found.wrong,
            "counts": dict(found.counts),
            "never_predicted": list(found.never_predicted),
            "by_class": {label: dict(scores) for label, scores in found.by_class.items()},
            "mistakes": [vars(mistake) for mistake in found.mistakes],
        }
        if found.confusion is not None:
            content |= {"labels": list(found.labels), "confusion": found.confusion.tolist()}
    return content


def _four_decimals(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}
