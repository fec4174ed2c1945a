"""The curves of a pretraining run, drawn without a screen. matplotlib is imported only when one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from training.report.plots import ACCENTS, INK, PALE, plain, save_figure
from training.report.pretraining.content import PretrainReport, language_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 3000
"""More cannot be told apart on a picture of this width, and a run of a million steps would take minutes to draw."""
Floats = NDArray[np.float64]
Points = Sequence[Mapping[str, float]]


def draw_loss(path: Path, report: PretrainReport) -> None:
    """Draw training and held-out loss over steps, with what knowing nothing and knowing frequencies would give."""
    name = language_loss(report.history)
    figure, (axes,) = _panels(1, 4.4)
    losses = _noisy(axes, report.history, name, ACCENTS[0], "training")
    shown = [losses]
    if looked := _column(report.looks, "mlm_loss"):
        axes.plot(
            *looked,
            color=ACCENTS[1],
            marker="o",
            markersize=4,
            linewidth=1.6,
            label=f"held-out text: {looked[1][-1]:.2f}",
        )
        shown.append(looked[1])
    lowest = min(float(values.min()) for values in shown)
    # The first steps may be wild, and one spike must not press the rest flat.
    highest = max(
        float(np.quantile(losses, 0.995)), *(float(values.max()) for values in shown[1:]), lowest + 0.1
    )
    if report.log_vocab and losses[0] > 0.9 * report.log_vocab:
        highest = max(highest, report.log_vocab)  # begun from nothing: show where that is
    margin = 0.05 * (highest - lowest)
    axes.set_ylim(max(0.0, lowest - 2 * margin), highest + 2 * margin)
    _levels(axes, report)
    axes.set_ylabel("loss of masked words, nats" if name == "loss_mlm" or looked else "training loss, nats")
    axes.legend(frameon=False)
    _steps(figure, axes, report.history)
    save_figure(figure, path)


def draw_held_out(path: Path, report: PretrainReport) -> None:
    """Draw accuracy of masked words and of pairs, and below them perplexity, over steps."""
    figure, (accuracy, perplexity) = _panels(2, 5.6)
    for colour, (name, label) in zip(
        ACCENTS, {"mlm_accuracy": "masked words", "pair_accuracy": "pairs"}.items(), strict=False
    ):
        if found := _column(report.looks, name):
            steps, values = found
            accuracy.plot(
                steps, 100 * values, color=colour, marker="o", markersize=4, linewidth=1.6,
                label=f"{label}: {100 * values[-1]:.1f}%",
            )  # fmt: skip
            if name == "pair_accuracy":
                accuracy.axhline(50, color=colour, linewidth=0.8, linestyle=":", label="pairs by chance")
    accuracy.set_ylim(bottom=0)
    accuracy.set_ylabel("right on held-out text, %")
    accuracy.legend(frameon=False)
    if found := _column(report.looks, "perplexity"):
        steps, values = found
        perplexity.semilogy(
            steps,
            values,
            color=ACCENTS[0],
            marker="o",
            markersize=4,
            linewidth=1.6,
            label=f"at the end {values[-1]:,.1f}",
        )
        _plain_logarithm(perplexity)
        perplexity.legend(frameon=False)
    perplexity.set_ylabel("perplexity of masked words")
    plain(accuracy)
    _steps(figure, perplexity, report.history)
    save_figure(figure, path)


def draw_machine(path: Path, report: PretrainReport) -> None:
    """Draw learning rate, gradient norm and speed over steps."""
    figure, (rate, norm, speed) = _panels(3, 6.6)
    steps, rates = thin(report.history, "lr")
    rate.plot(steps, rates, color=ACCENTS[0], linewidth=1.6)
    rate.yaxis.set_major_formatter(lambda value, _: _exponential(value))
    rate.set_ylim(bottom=0)
    rate.set_ylabel("learning rate")
    norms = _noisy(norm, report.history, "grad_norm", ACCENTS[0], "gradient norm")
    if norms.size and norms.min() > 0 and norms.max() > 10 * norms.min():
        norm.set_yscale("log")
        _plain_logarithm(norm)
    norm.set_ylabel("gradient norm")
    speeds = _noisy(speed, report.history, "tokens_per_second", ACCENTS[2], "tokens a second")
    speed.set_ylim(0, 1.15 * float(np.quantile(speeds, 0.99)))
    speed.set_ylabel("tokens a second")
    speed.yaxis.set_major_formatter(lambda value, _: _short(value))
    _utilisation_axis(speed, report.history)
    for axes in (rate, norm):
        plain(axes)
    _steps(figure, speed, report.history)
    save_figure(figure, path)


def _panels(count: int, height: float) -> tuple["Figure", Sequence["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), dpi=120, layout="constrained")
    return figure, list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])


def _noisy(axes: "Axes", history: Points, name: str, colour: str, label: str) -> Floats:
    """Draw each step pale and the smoothed course over it; return the smoothed values."""
    steps, values = thin(history, name)
    if len(values) <= 20:
        axes.plot(steps, values, color=colour, linewidth=1.6, marker="o", markersize=4, label=label)
        return values
    axes.plot(steps, values, color=PALE, linewidth=0.6)
    course = rolling_median(values)
    axes.plot(steps, course, color=colour, linewidth=1.8, label=label)
    return course


def rolling_median(values: Floats) -> Floats:
    """Return the median around each point, over a fiftieth of all and 15 at least: a spike leaves no trace.

    At the start, where losses fall fast, over as many points before as after; at the end over what there is.
    """
    half = max(7, len(values) // 100)
    reach = np.minimum(half, np.arange(len(values)))
    return np.array([np.median(values[i - r : i + r + 1]) for i, r in enumerate(reach)])


def thin(history: Points, name: str) -> tuple[Floats, Floats]:
    """Return steps and values of a number, the mean of neighbours where there are too many to draw."""
    steps, values = _column(history, name) or (np.zeros(0), np.zeros(0))
    size = -(-len(values) // MOST_POINTS)
    if size <= 1:
        return steps, values
    starts = np.arange(0, len(values), size)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(values, starts) / counts


def _column(points: Points, name: str) -> tuple[Floats, Floats] | None:
    found = [(point["step"], point[name]) for point in points if name in point]
    if not found:
        return None
    steps, values = np.asarray(found, np.float64).T
    return steps, values


def _levels(axes: "Axes", report: PretrainReport) -> None:
    """Mark the losses of a blind guess and of word frequencies, where they are in the picture."""
    low, high = axes.get_ylim()
    levels = {"blind guess": report.log_vocab, "word frequencies": report.unigram_entropy}
    for label, level in levels.items():
        if level and low < level < high:
            axes.axhline(level, color=INK, linewidth=0.8, linestyle=":")
            axes.annotate(
                label, (0.995, level), xycoords=("axes fraction", "data"), xytext=(0, 2),
                textcoords="offset points", ha="right", va="bottom", fontsize=8.5, color=INK,
            )  # fmt: skip
    plain(axes)


def _steps(figure: "Figure", axes: "Axes", history: Points) -> None:
    """Label the axis of steps, and count the tokens on a second one on top of the picture."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step of the optimiser")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain(axes)
    if len(history) < 2:
        return
    axes.set_xlim(0, 1.01 * history[-1]["step"])
    steps = np.array([point["step"] for point in history], np.float64)
    tokens = np.array([point["tokens"] for point in history], np.float64)
    if (np.diff(tokens) <= 0).any() or (np.diff(steps) <= 0).any():
        return
    # Beyond the ends as at the ends: the axis reaches a little further than the run.
    slope = tokens[-1] / steps[-1]
    steps = np.concatenate([[steps[0] - steps[-1]], steps, [2 * steps[-1]]])
    tokens = np.concatenate([[tokens[0] - tokens[-1]], tokens, [tokens[-1] + slope * history[-1]["step"]]])

    def forth(x: ArrayLike) -> Floats:
        return np.interp(np.asarray(x, np.float64), steps, tokens)

    def back(x: ArrayLike) -> Floats:
        return np.interp(np.asarray(x, np.float64), tokens, steps)

    top = figure.axes[0].secondary_xaxis("top", functions=(forth, back))
    top.set_xlabel("tokens read")
    top.xaxis.set_major_formatter(lambda value, _: _short(value))
    top.spines["top"].set_visible(False)


def _utilisation_axis(axes: "Axes", history: Points) -> None:
    """Show the share of the machine's peak at the right: it is the speed, scaled, while the length stays the same."""
    shares = [point["mfu"] for point in history if "mfu" in point]
    if not shares:
        return
    mean = 100 * float(np.mean(shares[len(shares) // 10 :]))
    axes.annotate(
        f"{mean:.0f}% of the machine's matmul peak",
        (0.995, 0.06),
        xycoords="axes fraction",
        ha="right",
        fontsize=8.5,
    )


def _plain_logarithm(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _exponential(value: float) -> str:
    """Return 5e-4 for 0.0005."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _short(value: float) -> str:
    """Return 1.5M for 1,500,000."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
