"""Parts that the reports of all runs share: the two files, Markdown tables, and the summary of the steps."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert.files import atomic_write

HISTORY_POINTS = 500
"""Steps of the history that report.json keeps, evenly spaced."""
History = Sequence[Mapping[str, float]]
"""Numbers of each step: {"step", "tokens", "loss", "lr", "tokens_per_second", ...}, tokens from the start of the run. In a
long run a point stands for as many neighbouring steps as the others do."""


def write_pages(folder: Path, content: Mapping[str, Any], page: str) -> Path:
    """Write report.json and report.md into a folder that exists; return the path of report.md."""
    atomic_write(folder / "report.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    atomic_write(folder / "report.md", page)
    return folder / "report.md"


def opening(title: str, command: str) -> list[str]:
    """Return the first parts of a page: its title and the command of the run."""
    return [f"# {escaped(title)}\n", *([f"```\n{command}\n```\n"] if command else [])]


def warning_section(warnings: Sequence[str]) -> list[str]:
    """Return the section of warnings; no part without any."""
    return ["## Warnings\n\n" + "".join(f"- {escaped(line)}\n" for line in warnings)] if warnings else []


def thinned(history: History) -> list[dict[str, float]]:
    """Return at most HISTORY_POINTS steps, evenly spaced."""
    every = max(1, -(-len(history) // HISTORY_POINTS))
    return [dict(point) for point in history[::every]]


def training_summary(history: History) -> dict[str, float]:
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right; the first cell of a row is a name."""
    rule = f"| {' | '.join(['---', *('---:' for _ in header[1:])])} |\n"
    first, *others = (f"| {' | '.join(map(escaped, row))} |\n" for row in [header, *rows])
    return first + rule + "".join(others)


def escaped(text: str) -> str:
    """Return one line without any Markdown or HTML: texts of users may hold anything."""
    line = " ".join(text.split())
    for letter in "\\`*[]|<>#":
        line = line.replace(letter, f"\\{letter}")
    return line
