"""The report's picture: python -m benchmarks.gpu_check.picture report.json report.png."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PANELS: tuple[tuple[str, str, Callable[[Row], str], tuple[str, ...]], ...] = (
    (
        "engine",
        "real tokens a second",
        lambda row: f"{row['model']} {row['tokens']}, {row['engine']}",
        ("tokens/s",),
    ),
    (
        "engine",
        "share of the matmul rate",
        lambda row: f"{row['model']} {row['tokens']}, {row['engine']}",
        ("of matmul",),
    ),
    (
        "training",
        "tokens a second",
        lambda row: f"{row['run']}, {row['longest']} x {row['batch']}",
        ("tokens/s",),
    ),
    ("training", "MFU", lambda row: f"{row['run']}, {row['longest']} x {row['batch']}", ("MFU",)),
    (
        "captures",
        "ms",
        lambda row: f"{row['model']} {row['texts']} of {row['tokens']}",
        ("captured, ms", "plain, ms"),
    ),
    (
        "served",
        "texts a second",
        lambda row: f"{row['texts']}, {row['connections']} connections",
        ("texts/s",),
    ),
)
"""Table, label of the axis, label of a bar, columns."""
COLOURS = ("#1f5fa8", "#c4501b")
BAR_INCHES = 0.22


def main() -> None:
    """Draw it."""
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text(encoding="utf-8")), target)


def draw(report: Row, target: Path) -> None:
    """Draw each table that has rows as bars, one below the other."""
    from matplotlib.figure import Figure

    tables = {name: rows for found in report["sections"] for name, rows in found["tables"].items()}
    panels = [panel for panel in PANELS if tables.get(panel[0])]
    heights = [0.9 + BAR_INCHES * len(tables[panel[0]]) * len(panel[3]) for panel in panels] or [1.0]
    figure = Figure(figsize=(10, 0.6 + sum(heights)), layout="constrained")
    figure.suptitle(
        f"GPU check, {report['started']}, {report['device']}{', small' if report['small'] else ''}"
    )
    axes = figure.subplots(max(1, len(panels)), squeeze=False, height_ratios=heights)[:, 0]
    for ax, (table, unit, label, columns) in zip(axes, panels, strict=False):
        rows = tables[table][::-1]  # bars are drawn from below
        for number, column in enumerate(columns):
            places = [place + number / (len(columns) + 1) for place in range(len(rows))]
            values = [float(row.get(column, 0)) for row in rows]
            bars = ax.barh(places, values, 0.8 / len(columns), color=COLOURS[number], label=column)
            ax.bar_label(bars, [_number(value) for value in values], padding=3, fontsize=7)
        ax.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=7)
        ax.set_title(f"{table}: {unit}", fontsize=9, loc="left")
        ax.margins(x=0.12)
        if len(columns) > 1:
            ax.legend(fontsize=7)
    figure.savefig(target, dpi=120)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
