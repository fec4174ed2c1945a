"""The table and the figure of all recipes."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.training.curves.runs import Curve
from benchmarks.training.curves.verdict import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sides = Sequence[tuple[Curve, Curve]]
"""Our curve and theirs of each seed."""
HEAD = (
    "| recipe | number | ours | transformers | difference | 2 standard errors | largest of a seed | verdict |\n"
    "|---|---|---:|---:|---:|---:|---:|---|"
)
COLUMNS, COLOURS = 4, {"ours": "#1f5fa8", "transformers": "#c4501b"}


def comparisons(sides: Sides) -> dict[str, Comparison]:
    """Return what is compared: held-out loss at the end, where a head tells masked words, and the training loss."""
    found = {}
    if all(a.held_out and b.held_out for a, b in sides):
        last = max(sides[0][0].held_out)
        found["held-out loss"] = Comparison(
            [a.held_out[last] for a, _ in sides], [b.held_out[last] for _, b in sides]
        )
    found["training loss"] = Comparison([a.last_losses for a, _ in sides], [b.last_losses for _, b in sides])
    return found


def table(recipes: Mapping[str, Sides]) -> str:
    """Return a row for each recipe and number: mean ± standard deviation over seeds on each side."""
    rows = [
        _row(recipe, name, each)
        for recipe, sides in recipes.items()
        for name, each in comparisons(sides).items()
    ]
    return "\n".join([HEAD, *rows])


def _row(recipe: str, name: str, each: Comparison) -> str:
    cells = [
        f"`{recipe}`",
        name,
        *(f"{statistics.mean(side):.4f} ± {statistics.stdev(side):.4f}" for side in (each.ours, each.theirs)),
        f"{each.difference:+.4f}",
        f"{2 * each.standard_error:.4f}",
        f"{each.largest_of_a_seed:.4f}",
        "same" if each.is_noise else "DIFFERS",
    ]
    return f"| {' | '.join(cells)} |"


def draw(recipes: Mapping[str, Sides], file: Path) -> None:
    """Draw a panel for each recipe: the mean over seeds of each side, and the range of the seeds as a band."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = -(-len(recipes) // COLUMNS)
    figure = Figure(figsize=(3.1 * COLUMNS, 2.4 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes, (recipe, sides) in zip(panels, recipes.items(), strict=False):
        _panel(axes, recipe, sides)
    for axes in panels[len(recipes) :]:
        axes.set_axis_off()
    panels[0].legend(frameon=False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):  # text stays text
        figure.savefig(file, metadata={"Date": None})


def _panel(axes: "Axes", recipe: str, sides: Sides) -> None:
    for number, (name, colour) in enumerate(COLOURS.items()):
        curves = [smoothed(pair[number]) for pair in sides]
        steps = sorted(curves[0])
        values = [[curve[step] for curve in curves] for step in steps]
        axes.fill_between(
            steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0
        )
        style = "-" if number else "--"
        axes.plot(steps, list(map(statistics.mean, values)), style, color=colour, linewidth=1.4, label=name)
    axes.set_title(recipe if sides[0][0].held_out else f"{recipe} (training loss)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def smoothed(curve: Curve) -> dict[int, float]:
    """Return the held-out losses by step; without any, means of the training loss over tenths of the run."""
    if curve.held_out:
        return curve.held_out
    size = max(1, len(curve.losses) // 10)
    ends = range(size, len(curve.losses) + 1, size)
    return {end: statistics.mean(curve.losses[end - size : end]) for end in ends}
