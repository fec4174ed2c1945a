"""The report at the end of a pretraining run: report.md for people, report.json for programs, and the curves."""

import json
from collections.abc import Callable
from pathlib import Path

from training.report import write_aside
from training.report.pretraining.content import PretrainReport, as_json, split_log
from training.report.pretraining.markdown import as_markdown
from training.report.pretraining.of_run import run_report
from training.report.pretraining.plots import draw_held_out, draw_loss, draw_machine

__all__ = ["PretrainReport", "as_json", "as_markdown", "run_report", "split_log", "write_report"]


def write_report(folder: Path, report: PretrainReport) -> Path:
    """Write the report into `folder`, which is made if needed; return the path of report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    draw: dict[str, Callable[[Path, PretrainReport], None]] = {}
    if report.history:
        draw["loss.png"] = draw_loss
    if any("mlm_accuracy" in look for look in report.looks):
        draw["held_out.png"] = draw_held_out
    if report.history:
        draw["machine.png"] = draw_machine
    for name, draw_it in draw.items():
        draw_it(folder / name, report)
    content = as_json(report)
    write_aside(folder / "report.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_aside(folder / "report.md", as_markdown(report, list(draw)))
    return folder / "report.md"
