"""The report of a fine-tuning run: report.md for people, report.json for programs, and the pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.engine.progress import format_seconds
from training.labelled.summary import FileSummary
from training.report.error_analysis import DevFile, Findings, Mistake
from training.report.page import (
    History,
    escaped,
    opening,
    table,
    thinned,
    training_summary,
    warning_section,
    write_pages,
)
from training.report.plots import Line, Panel, column, draw_confusion, draw_panels

CURVE = "curve.png"


@dataclass(frozen=True)
class RunReport:
    """Content of the report of one run."""

    title: str
    dev: Sequence[DevFile]
    history: History = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    """{"step", "scores": {file: {metric: value}}, "loss"} of each evaluation; the loss is None where it is unknown."""
    metric: str | None = None
    """Score that chose the best checkpoint."""
    best_step: int | None = None
    command: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    """Learning rate and epochs with the reason for each, in a line."""
    data: Sequence[FileSummary] = ()
    warnings: Sequence[str] = ()


def write_report(folder: Path, report: RunReport) -> Path:
    """Write the report into `folder`, which is made if needed; return the path of report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    if report.history:
        draw_panels(folder / CURVE, curve_panels(report))
    for file in report.dev:
        if file.findings is not None and file.findings.confusion is not None:
            draw_confusion(folder / _confusion_name(file), file.findings.confusion, file.findings.labels)
    return write_pages(folder, as_json(report), as_markdown(report))


def curve_panels(report: RunReport) -> list[Panel]:
    """Return the loss over steps, and the dev score of each file beside its baseline."""
    loss = Panel("training loss", [column(report.history, "loss", "each step", every_step=True)], (0.0,))
    lines = score_lines(report.evaluations, report.metric)
    levels = {
        f"{file.name} baseline": file.baseline.scores[str(report.metric)]
        for file in report.dev
        if file.baseline is not None and str(report.metric) in file.baseline.scores
    }
    # From 0 to 1, whatever the scores: a range that fits them would make noise look like a climb.
    scores = Panel("score on dev", lines, (0.0, 1.0, *levels.values()), levels, report.best_step)
    return [loss, scores] if lines else [loss]


def score_lines(evaluations: Sequence[Mapping[str, Any]], metric: str | None) -> list[Line]:
    """Return a line a dev file. A file without `metric` shows its first one."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for evaluation in evaluations:
        for name, values in evaluation["scores"].items():
            chosen = metric if metric in values else next(iter(values), None)
            if chosen is not None:
                steps, points = lines.setdefault(f"{name} {chosen}", ([], []))
                steps.append(float(evaluation["step"]))
                points.append(float(values[chosen]))
    return [Line(label, steps, values) for label, (steps, values) in lines.items()]


def as_json(report: RunReport) -> dict[str, Any]:
    """Return the content of report.json."""
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
        "history": thinned(report.history),
        "settings": dict(report.settings),
    }


def as_markdown(report: RunReport) -> str:
    """Return the content of report.md."""
    parts = opening(report.title, report.command) + warning_section(report.warnings)
    if report.data:
        lines = [f"{file.sentence}{'; ' * bool(file.too_long)}{file.too_long}" for file in report.data]
        parts.append("## Data\n\n" + "".join(f"- {escaped(line)}\n" for line in lines))
    if report.recipe:
        parts.append(report.recipe + ".\n")
    parts.append(_training_line(report))
    parts.append(_scores_table(report.dev) if report.dev else "No held-out data was given to score on.\n")
    if report.history:
        parts.append(f"![loss and dev score over steps]({CURVE})\n")
    for file in report.dev:
        if file.findings is not None:
            parts += _file_section(file, file.findings)
    return "\n".join(parts)


def _training_line(report: RunReport) -> str:
    summary = training_summary(report.history)
    if not summary:
        return ""
    kept = (
        ""
        if report.best_step is None
        else f" The checkpoint kept is that of step {report.best_step}{_why(report)}."
    )
    return (
        f"{summary['steps']:,.0f} steps over {summary['tokens']:,.0f} tokens "
        f"in {format_seconds(summary['seconds'])}, {summary['tokens_per_second']:,.0f} tokens a second; "
        f"loss at the end {summary['final_loss']:.4f}.{kept}\n"
    )


def _why(report: RunReport) -> str:
    """Return what chose the checkpoint; nothing without dev scores to choose by."""
    if not report.evaluations:
        return ""
    return f", the best by {report.metric} on dev; of equal scores, the one with the lower loss there"


def _scores_table(dev: Sequence[DevFile]) -> str:
    names = list(dict.fromkeys(name for file in dev for name in file.scores))
    rows = []
    for file in dev:
        rows.append([file.name, *(_number(file.scores.get(name)) for name in names)])
        if file.baseline is not None:
            scores = file.baseline.scores
            rows.append([f"baseline: {file.baseline.rule}", *(_number(scores.get(name)) for name in names)])
    return "## Scores\n\n" + table(["held-out file", *names], rows)


def _file_section(file: DevFile, found: Findings) -> list[str]:
    parts = [f"## {escaped(file.name)}\n"]
    if found.counts:
        rows = [[kind, str(count)] for kind, count in sorted(found.counts.items(), key=lambda pair: -pair[1])]
        parts.append(table(["outcome", "count"], rows))
    if found.by_class:
        columns = ("precision", "recall", "f1")
        rows = [
            [label, *(_number(scores[name]) for name in columns), f"{scores['support']:.0f}"]
            for label, scores in found.by_class.items()
        ]
        parts.append(table(["class", *columns, "gold"], rows))
    if found.confusion is not None:
        parts.append(f"![confusion matrix]({_confusion_name(file)})\n")
    if found.mistakes:
        wrong = f"{found.wrong} of {found.examples} not wholly right; here are"
        shown = f"{wrong if found.wrong else 'The farthest off,'} {len(found.mistakes)}"
        listed = [f"{number}. {_mistake(mistake)}\n" for number, mistake in enumerate(found.mistakes, 1)]
        parts.append(f"### Mistakes\n\n{shown}:\n\n" + "".join(listed))
    return parts


def _mistake(mistake: Mistake) -> str:
    sure = "" if mistake.confidence is None else f" ({mistake.confidence:.2f})"
    first = f"gold **{escaped(mistake.gold)}**, predicted **{escaped(mistake.predicted)}**{sure}"
    return f"{first} · id {escaped(mistake.id)}\n   > {escaped(mistake.text)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _confusion_name(file: DevFile) -> str:
    """Return the picture's name for a held-out file of any name."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in file.name)
    return f"confusion-{safe}.png"


def _file_json(file: DevFile) -> dict[str, Any]:
    content: dict[str, Any] = {"scores": dict(file.scores)}
    if file.baseline is not None:
        scores = {name: round(value, 4) for name, value in file.baseline.scores.items()}
        content["baseline"] = {"rule": file.baseline.rule, "scores": scores}
    found = file.findings
    if found is not None:
        content |= asdict(found)
        if found.confusion is None:
            del content["labels"], content["confusion"]
        else:
            content["confusion"] = found.confusion.tolist()
    return content
