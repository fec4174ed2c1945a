"""The pictures of a report, drawn without a screen. matplotlib is imported only when one is drawn."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE, ACCENTS = "#222222", "#9db7d5", ("#1f5fa8", "#c4501b", "#2e7d4f", "#7b4fa3", "#8a6d1d")
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
)
FIRST_CHINESE = 0x2E80
COUNTS_UP_TO = 25
"""A confusion matrix of more classes shows colours only: numbers would not be readable."""


def draw_curve(
    path: Path,
    history: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, Any]] = (),
    metric: str | None = None,
    best_step: int | None = None,
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draw the loss over steps, and below it the dev score of each file; best step and `baselines` are marked.

    `history` has "step" and "loss"; `evaluations` have "step" and "scores", {metric: value} or
    {file: {metric: value}}. `metric` None takes the first metric of each file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    lines = score_lines(evaluations, metric)
    figure = Figure(figsize=(8, 6 if lines else 3.6), dpi=120, layout="constrained")
    panels = figure.subplots(2 if lines else 1, 1, sharex=True, squeeze=False)[:, 0]
    _loss_panel(panels[0], history)
    if lines:
        score_panel(panels[1], lines, best_step, baselines)
    panels[-1].set_xlabel("step of the optimiser")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    save_figure(figure, path)


def score_lines(
    evaluations: Sequence[Mapping[str, Any]], metric: str | None
) -> dict[str, tuple[list[int], list[float]]]:
    """Return the steps and values of each line: one a dev file."""
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for evaluation in evaluations:
        scores = evaluation["scores"]
        by_file = scores if any(isinstance(value, Mapping) for value in scores.values()) else {"dev": scores}
        for name, values in by_file.items():
            chosen = metric if metric in values else next(iter(values), None)
            if chosen is not None:
                steps, points = lines.setdefault(f"{name} {chosen}", ([], []))
                steps.append(int(evaluation["step"]))
                points.append(float(values[chosen]))
    return lines


def draw_confusion(path: Path, confusion: NDArray[np.int64], labels: Sequence[str]) -> None:
    """Draw counts (K, K), gold classes as rows; a cell's colour is its share of the row."""
    from matplotlib.figure import Figure

    side = min(12.0, max(4.0, 1.6 + 0.55 * len(labels)))
    figure = Figure(figsize=(side + 1, side), dpi=120, layout="constrained")
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places, names, fonts = range(len(labels)), *_names(labels)
    axes.set_xticks(places, names, rotation=45, ha="right", family=fonts)
    axes.set_yticks(places, names, family=fonts)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    if len(labels) <= COUNTS_UP_TO:
        for row, column in np.ndindex(*confusion.shape):
            colour = "white" if shares[row, column] > 0.55 else INK
            axes.text(
                column, row, str(confusion[row, column]), ha="center", va="center", color=colour, fontsize=9
            )
    figure.colorbar(image, ax=axes, label="share of the gold class", shrink=0.8)
    save_figure(figure, path)


def smoothed(values: Sequence[float]) -> NDArray[np.float64]:
    """Mean over a window of a fiftieth of the run around each point; shorter at both ends."""
    points = np.asarray(values, np.float64)
    half = max(1, len(points) // 100)
    total = np.concatenate([[0.0], np.cumsum(points)])
    first = np.maximum(np.arange(len(points)) - half, 0)
    last = np.minimum(np.arange(len(points)) + half + 1, len(points))
    return np.asarray((total[last] - total[first]) / (last - first), np.float64)


def _loss_panel(axes: "Axes", history: Sequence[Mapping[str, float]]) -> None:
    steps, losses = [h["step"] for h in history], [h["loss"] for h in history]
    if len(losses) > 20:
        axes.plot(steps, losses, color=PALE, linewidth=0.7, label="each step")
        axes.plot(steps, smoothed(losses), color=ACCENTS[0], linewidth=1.8, label="smoothed")
        axes.legend(frameon=False)
        # A few wild steps, most often the first ones, must not press the rest flat.
        axes.set_ylim(0, max(1.15 * float(np.quantile(losses, 0.995)), 1e-9))
    else:
        axes.plot(steps, losses, color=ACCENTS[0], linewidth=1.8, marker="o", markersize=4)
        axes.set_ylim(bottom=0)
    axes.set_ylabel("training loss")
    plain(axes)


def score_panel(
    axes: "Axes",
    lines: Mapping[str, tuple[list[int], list[float]]],
    best_step: int | None,
    baselines: Mapping[str, float] | None,
) -> None:
    """Draw a line a dev file over a range of 0 to 1 at least, and the baselines across it."""
    for number, (name, (steps, values)) in enumerate(lines.items()):
        colour = ACCENTS[number % len(ACCENTS)]
        axes.plot(steps, values, color=colour, marker="o", markersize=4, linewidth=1.5, label=name)
    # From 0 to 1, whatever the scores: a range that fits them would make noise look like a climb.
    reached = [value for _, values in lines.values() for value in values if math.isfinite(value)]
    low, high = min([0.0, *reached]), max([1.0, *reached])
    axes.set_ylim(low - 0.02 * (high - low), high + 0.02 * (high - low))
    for rule, value in (baselines or {}).items():
        axes.axhline(value, color=INK, linewidth=0.8, linestyle=":", label=rule)
    if best_step is not None:
        axes.axvline(best_step, color=INK, linewidth=0.8, linestyle="--", label=f"best: step {best_step}")
    axes.set_ylabel("score on dev")
    axes.legend(frameon=False)
    plain(axes)


def plain(axes: "Axes") -> None:
    """Leave only what helps reading: two axes and pale lines across."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)


def _names(labels: Sequence[str]) -> tuple[list[str], list[str]]:
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


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a PNG."""
    with warnings.catch_warnings():
        # A name in a script that no font has is drawn as boxes; report.md has it in letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path)
