"""The report: report.json with everything, report.md for people."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.plan import SECTIONS
from benchmarks.gpu_check.records import Findings, Row

JSON, PAGE, PICTURE, LOG = "report.json", "report.md", "report.png", "log.txt"
MAX_ERROR = 1200
"""Characters of an error on the page; report.json has it whole."""


@dataclass
class Report:
    """Everything that a run of the check found."""

    command: str
    started: str
    device: str
    small: bool
    budget_s: float
    notes: list[str] = field(default_factory=list)
    sections: list[Findings] = field(default_factory=list)
    seconds: float = 0.0

    def write(self, out: Path) -> None:
        """Write report.json and report.md; a file that is there is replaced."""
        content = {**vars(self), "sections": [found.to_dict() for found in self.sections]}
        _replace(out / JSON, json.dumps(content, indent=1, default=str) + "\n")
        _replace(out / PAGE, "\n".join(self.lines()) + "\n")

    def lines(self) -> list[str]:
        """Return the page."""
        size = "small: it tries the code and measures nothing" if self.small else "full"
        lines = [
            f"# GPU check, {self.started}",
            "",
            f"Device {self.device}, {size}. {self.seconds:.0f} s of {self.budget_s:.0f} s. Command: `{self.command}`",
            "",
            *(f"- {note}" for note in self.notes),
            *([""] if self.notes else []),
            "| section | status | seconds | failed steps | left out |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {s.title} | {s.status} | {s.seconds:.0f} | {len(s.errors)} | {len(s.skipped)} |"
            for s in self.sections
        ]
        missing = [
            section.title for section in SECTIONS if section.name not in {s.name for s in self.sections}
        ]
        lines += [f"| {title} | not run | | | |" for title in missing]
        for found in self.sections:
            lines += _section(found)
        return lines


def _replace(file: Path, content: str) -> None:
    aside = file.with_name(f"{file.name}.writing")
    aside.write_text(content, encoding="utf-8")
    os.replace(aside, file)


def _section(found: Findings) -> list[str]:
    meaning = next(section.meaning for section in SECTIONS if section.name == found.name)
    lines = ["", f"## {found.title}", "", meaning, ""]
    lines += [f"**{found.status}**: {_short(found.error)}", ""] if found.error else []
    lines += [f"- {note}" for note in found.notes]
    lines += [f"- left out: {reason}" for reason in found.skipped]
    lines += [f"- **failed**: {_short(error)}" for error in found.errors]
    for name, rows in found.tables.items():
        lines += ["", f"{name}:", "", *table(rows)]
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """Return rows as a table of Markdown; columns stand in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, int | float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_ERROR else f"… {flat[-MAX_ERROR:]}"
