"""Wrong answers of a service with the demo models, and the two places where they are kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import results_of
from benchmarks.demo.cases import PATHS, Case, judged, read_cases, said

TOLERATED = Path(__file__).parent / "tolerated_misses.json"
README = Path(__file__).parents[2] / "models/README.md"
BEGIN, END = "<!-- misses: begin -->\n", "<!-- misses: end -->\n"


@dataclass(frozen=True, slots=True)
class Miss:
    """A case that was answered otherwise than a person would."""

    case: Case
    said: str

    def row(self) -> str:
        """Return its line in a table of Markdown."""
        cells = (self.case.name, self.case.shown, self.case.wanted, self.said)
        return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


Misses = Mapping[tuple[str, str], Sequence[Miss]]
"""(demo model, precision) → its misses."""


def find_misses(url: str, model: str) -> list[Miss]:
    """Ask the service at `url` all cases of a demo model; return those that it gets wrong."""
    misses = []
    for case in read_cases(model):
        result = results_of(url + PATHS[model], case.request | {"model": model})[0]
        if judged(model, result) not in case.right:
            misses.append(Miss(case, said(model, case, result)))
    return misses


def read_tolerated() -> dict[str, list[str]]:
    """Return the names of the tolerated misses of each demo model."""
    found: dict[str, list[str]] = json.loads(TOLERATED.read_text(encoding="utf-8"))
    return found


def report(misses: Misses) -> str:
    """Return the counts and the misses as tables of Markdown."""
    counts = [
        f"| {model} | {precision} | {len(read_cases(model)) - len(found)} |"
        for (model, precision), found in misses.items()
    ]
    parts = ["\n".join(["| model | precision | right of 100 |", "|---|---|---|", *counts])]
    for model, found in _by_model(misses).items():
        head = f"| {model}: case | asked | a person says | the model says |\n|---|---|---|---|"
        if found:
            parts.append("\n".join([head, *(miss.row() for miss in found)]))
    return "\n\n".join(parts) + "\n"


def _by_model(misses: Misses) -> dict[str, list[Miss]]:
    """Return what a model gets wrong in any precision, each case once."""
    found: dict[str, dict[str, Miss]] = {}
    for (model, _), missed in misses.items():
        for miss in missed:
            found.setdefault(model, {}).setdefault(miss.case.name, miss)
        found.setdefault(model, {})
    return {model: list(by_name.values()) for model, by_name in found.items()}


def write_misses(misses: Misses, machine: str) -> None:
    """Write the names into the list of tolerated misses, and the tables between the markers of models/README.md."""
    names = {model: [miss.case.name for miss in found] for model, found in _by_model(misses).items()}
    TOLERATED.write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
    before, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{README} lacks the lines {BEGIN.strip()} and {END.strip()}")
    text = f"{before}{begin}\n{machine}\n\n{report(misses)}\n{end}{after}"
    README.write_text(text, encoding="utf-8")
