"""The pictures of a report, drawn without a screen. matplotlib is imported only when one is drawn."""

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE, ACCENTS = "#222222", "#9db7d5", ("#1f5fa8", "#c4501b", "#2e7d4f", "#7b4fa3", "#8a6d1d")
MAX_POINTS = 3000
"""Most points of a line: more cannot be told apart at this width, and would take minutes to draw."""
MAX_MARKED_POINTS = 20
"""Most points of a line of steps that is drawn as it is, without smoothing."""
MARGIN = 0.02
MAX_CLASSES_WITH_COUNTS = 25
"""Most classes of a confusion matrix that shows counts; of more only the colours are readable."""
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
)
FIRST_CHINESE = 0x2E80
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One curve of a panel."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    every_step: bool = False
    """True for a value of each step, which is drawn pale under a smoothed course."""


@dataclass(frozen=True)
class Panel:
    """One diagram over steps; a picture holds several, one below the other."""

    label: str
    lines: Sequence[Line]
    always_shown: Sequence[float] = ()
    """Values that lie inside the axis whatever the lines are, such as 0 and 1 for scores."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Label → value of a horizontal line, drawn where the axis reaches it."""
    best_step: int | None = None
    """Step of a vertical line; None draws none."""
    logarithmic: bool = False


def column(points: Sequence[Mapping[str, float]], name: str, label: str, every_step: bool = False) -> Line:
    """Return the line of one number, from the points that have it."""
    found = [point for point in points if name in point]
    return Line(label, [point["step"] for point in found], [point[name] for point in found], every_step)


def draw_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write a PNG of panels that share the axis of steps."""
    _keep_out_of_home()
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 1.2 + 2.4 * len(panels)), dpi=120, layout="constrained")
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        _draw_panel(axes, panel)
    every[-1].set_xlabel("step of the optimiser")
    every[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    _save(figure, path)


def limits(panel: Panel) -> tuple[float, float]:
    """Return the ends of a panel's axis. A few wild steps, most often the first ones, do not press the rest flat."""
    ends = [float(value) for value in panel.always_shown]
    for line in panel.lines:
        _, values = thin(line)
        finite = values[np.isfinite(values)]
        if len(finite):
            course = rolling_median(finite) if line.every_step else finite
            ends += [
                float(course.min()),
                float(np.quantile(course, 0.995) if line.every_step else course.max()),
            ]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    margin = MARGIN * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def thin(line: Line) -> tuple[Floats, Floats]:
    """Return steps and values, averaged over neighbours where there are more than MAX_POINTS."""
    steps, values = np.asarray(line.steps, np.float64), np.asarray(line.values, np.float64)
    size = -(-len(values) // MAX_POINTS)
    if size <= 1:
        return steps, values
    starts = np.arange(0, len(values), size)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def rolling_median(values: Floats) -> Floats:
    """Return the median around each point, over a fiftieth of all and at least 15 values: no trace of a spike.

    The window shrinks at the start, where losses fall fast, to as many values before a point as after it.
    """
    half = max(7, len(values) // 100)
    reach = np.minimum(half, np.arange(len(values)))
    return np.array([np.median(values[i - r : i + r + 1]) for i, r in enumerate(reach)])


def draw_confusion(path: Path, confusion: NDArray[np.int64], labels: Sequence[str]) -> None:
    """Draw counts (K, K), gold classes as rows; a cell's colour is its share of the row."""
    _keep_out_of_home()
    from matplotlib.figure import Figure

    side = min(12.0, max(4.0, 1.6 + 0.55 * len(labels)))
    figure = Figure(figsize=(side + 1, side), dpi=120, layout="constrained")
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places, names, fonts = range(len(labels)), *_class_names(labels)
    axes.set_xticks(places, names, rotation=45, ha="right", family=fonts)
    axes.set_yticks(places, names, family=fonts)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    if len(labels) <= MAX_CLASSES_WITH_COUNTS:
        for row, place in np.ndindex(*confusion.shape):
            colour = "white" if shares[row, place] > 0.55 else INK
            axes.text(
                place, row, str(confusion[row, place]), ha="center", va="center", color=colour, fontsize=9
            )
    figure.colorbar(image, ax=axes, label="share of the gold class", shrink=0.8)
    _save(figure, path)


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        steps, values = thin(line)
        colour = ACCENTS[number % len(ACCENTS)]
        if line.every_step and len(values) > MAX_MARKED_POINTS:
            axes.plot(steps, values, color=PALE, linewidth=0.6)
            axes.plot(steps, rolling_median(values), color=colour, linewidth=1.8, label=line.label)
        else:
            axes.plot(steps, values, color=colour, linewidth=1.6, marker="o", markersize=4, label=line.label)
    if panel.logarithmic and all(value > 0 for line in panel.lines for value in line.values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(*limits(panel))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    low, high = axes.get_ylim()
    for label, level in panel.levels.items():
        if low < level < high:
            axes.axhline(level, color=INK, linewidth=0.8, linestyle=":", label=label)
    if panel.best_step is not None:
        axes.axvline(
            panel.best_step, color=INK, linewidth=0.8, linestyle="--", label=f"best: step {panel.best_step}"
        )
    axes.set_ylabel(panel.label)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)


def _class_names(labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the labels as they are drawn, and the fonts: one for Chinese only if the machine has one."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(font for font in CHINESE_FONTS if font in installed)]
    names = []
    for number, label in enumerate(labels):
        # Without a font Chinese would be a row of boxes; report.md lists the classes in the same order.
        is_drawable = len(fonts) > 1 or all(ord(letter) < FIRST_CHINESE for letter in label)
        short = label if len(label) <= 20 else label[:19] + "…"
        names.append(short if is_drawable else f"class {number + 1}")
    return names, fonts


def _keep_out_of_home() -> None:
    """Give matplotlib a temporary folder for its list of fonts, unless MPLCONFIGDIR names one.

    It would write the list into the home directory, which a training run leaves alone; making it anew takes 0.3 s.
    """
    if "MPLCONFIGDIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="matplotlib-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["MPLCONFIGDIR"] = folder


def _save(figure: "Figure", path: Path) -> None:
    with warnings.catch_warnings():
        # A name in a script that no font has is drawn as boxes; report.md has it in letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path)
