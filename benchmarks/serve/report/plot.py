"""The figures of a comparison as a picture."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.ticker import ScalarFormatter

from benchmarks.serve.report.percentiles import Spread
from benchmarks.serve.report.report import Row, ServingComparison, usual_load


def draw(comparison: ServingComparison, file: Path) -> None:
    """Write a PNG: rates over connections, latencies at constant rate, CPU time and memory."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in comparison.rows if row.good]
    figure, ((rates, latencies), (cpu, memory)) = pyplot.subplots(
        2, 2, figsize=(14, 10), layout="constrained"
    )
    colours = {row.name: pyplot.get_cmap("tab20")(number % 20) for number, row in enumerate(rows)}
    _rates(rates, comparison, rows, colours)
    _latencies(latencies, comparison, rows)
    usual = usual_load(comparison.connections)
    _bars(
        cpu,
        f"CPU time a request at {usual} connections, ms",
        {row.title: Spread.of([loop.cpu_ms for loop in row.closed(usual)]) for row in rows},
        list(colours.values()),
    )
    _bars(
        memory,
        "peak memory, MB",
        {row.title: Spread.of([_peak_mb(each) for each in row.good]) for row in rows},
        list(colours.values()),
    )
    figure.suptitle("\n".join(comparison.header[:2]), fontsize=9)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _rates(axes: Any, comparison: ServingComparison, rows: list[Row], colours: dict[str, Any]) -> None:
    places = range(len(comparison.connections))
    for row in rows:
        spreads = [
            Spread.of([loop.requests_per_s for loop in row.closed(connections)])
            for connections in comparison.connections
        ]
        axes.errorbar(
            places, [s.median for s in spreads], yerr=_errors(spreads), marker="o", capsize=3, label=row.title,
            color=colours[row.name],
        )  # fmt: skip
    if comparison.engine:
        rates = {
            row.title: Spread.of([x.requests_per_s for x in row.loops]).median for row in comparison.engine
        }
        fastest = max(rates, key=rates.__getitem__)
        axes.axhline(rates[fastest], color="grey", linestyle="--", label=fastest)
    axes.set_xticks(list(places), [str(connections) for connections in comparison.connections])
    axes.set_title("requests per second over connections, closed loop", fontsize=10)
    axes.set_ylim(0)
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.06))


def _latencies(axes: Any, comparison: ServingComparison, rows: list[Row]) -> None:
    """Draw a line from p50 to p99.9 of each baseline at the highest share, a mark at p99."""
    if not comparison.shares:
        axes.axis("off")
        return
    share = max(comparison.shares)
    rows = [row for row in rows if row.open(share)]
    middles = {
        figure: [Spread.of([getattr(loop, figure) for loop in row.open(share)]).median for row in rows]
        for figure in ("p50_ms", "p99_ms", "p999_ms")
    }
    places = range(len(rows))
    axes.hlines(places, middles["p50_ms"], middles["p999_ms"], color="lightgrey", linewidth=4)
    for figure, name, marker in (("p50_ms", "p50", "o"), ("p99_ms", "p99", "D"), ("p999_ms", "p99.9", "|")):
        axes.plot(middles[figure], places, marker, label=name, markersize=9)
    axes.set_yticks(places, [row.title for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_title(f"latency at {share:.0%} of the own highest rate, constant arrivals, ms", fontsize=10)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.tick_params(axis="x", which="both", labelsize=7)
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(fontsize=7)


def _bars(axes: Any, title: str, spreads: dict[str, Spread], colours: list[Any]) -> None:
    values = list(spreads.values())
    axes.barh(range(len(values)), [s.median for s in values], xerr=_errors(values), color=colours)
    axes.set_yticks(range(len(values)), list(spreads), fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)


def _errors(spreads: list[Spread]) -> list[list[float]]:
    return [[s.median - s.least for s in spreads], [s.most - s.median for s in spreads]]


def _peak_mb(each: Any) -> float:
    return max(float(loop.peak_bytes) for loop in each.closed) / 2**20
