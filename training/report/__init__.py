"""The report at the end of a run: report.md for people, report.json for programs, and the pictures."""

import json
import os
from pathlib import Path

from training.report.checks import data_warnings, result_warnings, unseen_labels
from training.report.content import DevFile, RunReport, as_json, confusion_name
from training.report.markdown import as_markdown
from training.report.plots import draw_confusion, draw_curve

__all__ = [
    "DevFile",
    "RunReport",
    "as_json",
    "as_markdown",
    "data_warnings",
    "draw_confusion",
    "draw_curve",
    "result_warnings",
    "unseen_labels",
    "write_report",
]


def write_report(folder: Path, report: RunReport) -> Path:
    """Write the report into `folder`, which is made if needed; return the path of report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = _draw(folder, report)
    write_aside(folder / "report.json", json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
    write_aside(folder / "report.md", as_markdown(report, pictures))
    return folder / "report.md"


def _draw(folder: Path, report: RunReport) -> list[str]:
    drawn = []
    if report.history:
        draw_curve(
            folder / "curve.png",
            report.history,
            report.evaluations,
            report.metric,
            report.best_step,
            {
                f"{file.name} baseline": file.baseline.scores[str(report.metric)]
                for file in report.dev
                if file.baseline is not None and str(report.metric) in file.baseline.scores
            },
        )
        drawn.append("curve.png")
    for file in report.dev:
        if file.findings is not None and file.findings.confusion is not None:
            name = confusion_name(file.name)
            draw_confusion(folder / name, file.findings.confusion, file.findings.labels)
            drawn.append(name)
    return drawn


def write_aside(path: Path, text: str) -> None:
    """Write aside and rename: a reader never sees half a report."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
