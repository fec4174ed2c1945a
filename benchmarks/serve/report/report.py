"""A comparison as a Markdown table, its notes, and JSON with every round."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.serve.load.measure import Closed, EngineLoop, Open, Round
from benchmarks.serve.report.percentiles import Spread

USUAL_LOAD = 32
"""Connections at which CPU time is told, where they were measured."""

BUSY_PERCENT = 5
"""Largest share of the cores that other work may take during the measurements for the figures to be of use."""


@dataclass(frozen=True, slots=True)
class Row:
    """A baseline's rounds."""

    name: str
    title: str
    rounds: Sequence[Round]
    passed: bool
    """True where its answers are the reference's, within its tolerance."""

    @property
    def good(self) -> list[Round]:
        """Return the rounds that were measured to the end."""
        return [each for each in self.rounds if not each.failure]

    def closed(self, connections: int) -> list[Closed]:
        """Return the loops of all good rounds at so many connections."""
        return [loop for each in self.good for loop in each.closed if loop.connections == connections]

    def open(self, share: float) -> list[Open]:
        """Return the open loops of all good rounds at this share."""
        return [loop for each in self.good for loop in each.open if loop.share == share]


@dataclass(frozen=True, slots=True)
class EngineRow:
    """A loop of the engine alone in each round."""

    title: str
    loops: Sequence[EngineLoop]


@dataclass(frozen=True, slots=True)
class ServingComparison:
    """All that was measured."""

    header: Sequence[str]
    engine: Sequence[EngineRow]
    rows: Sequence[Row]
    baseline: str
    """Name of the row that rates are divided by, round by round."""
    connections: Sequence[int]
    shares: Sequence[float]
    left_out: Sequence[str] = ()
    """Sentences on who did not take part, and why."""


def table(comparison: ServingComparison) -> str:
    """Return the table; rates as "median (least-most) ratio to the baseline in the same round"."""
    heads = [
        "baseline",
        "answers",
        *(f"requests/s at {c}" for c in comparison.connections),
        *(f"p50/p99 ms at {c}" for c in comparison.connections),
        *(f"open loop at {share:.0%}: /s, p50/p99/p99.9 ms" for share in comparison.shares),
        "CPU ms/request",
        "peak MB",
    ]
    lines = [_line(heads), "|" + "---|" * len(heads)]
    lines += [_line(_engine_cells(comparison, row)) for row in comparison.engine]
    lines += [_line(_cells(comparison, row)) for row in comparison.rows]
    return "\n".join(lines)


def notes(comparison: ServingComparison) -> str:
    """Return what has to be known beside the table."""
    lines = [
        f"Rates: median (least-most) over the rounds, and times {_title(comparison)} in the same round. CPU time at "
        f"{usual_load(comparison.connections)} connections, of all processes. Memory: proportional set size of all "
        "processes, sampled each second. Latencies of open loops count from the moment a request was due; p99.9 is the "
        "slowest one where a round has fewer than 1,000 requests. Those of the engine alone are of one call.",
        *_others(comparison),
        *comparison.left_out,
    ]
    for row in comparison.rows:
        lines += [f"{row.title}: {note}" for note in _row_notes(row)]
    return "\n".join(f"- {line}" for line in lines)


def as_json(comparison: ServingComparison) -> str:
    """Return every figure of every round."""
    content: dict[str, Any] = asdict(comparison)
    return json.dumps(content, indent=1) + "\n"


def usual_load(connections: Sequence[int]) -> int:
    """Return the connections at which CPU time is told."""
    return USUAL_LOAD if USUAL_LOAD in connections else max(connections)


def ratios(row: Row, baseline: Row, connections: int) -> list[float]:
    """Return the rate over the baseline's in each round that both were measured in."""
    found = []
    for mine, theirs in zip(row.rounds, baseline.rounds, strict=True):
        pair = [_rate_at(mine, connections), _rate_at(theirs, connections)]
        if all(pair):
            found.append(pair[0] / pair[1])
    return found


def _rate_at(each: Round, connections: int) -> float:
    rates = [loop.requests_per_s for loop in each.closed if loop.connections == connections]
    return rates[0] if rates and not each.failure else 0.0


def _baseline(comparison: ServingComparison) -> Row | None:
    return next((row for row in comparison.rows if row.name == comparison.baseline and row.good), None)


def _title(comparison: ServingComparison) -> str:
    baseline = _baseline(comparison)
    return baseline.title if baseline else f"the baseline ({comparison.baseline}, not measured)"


def _cells(comparison: ServingComparison, row: Row) -> list[str]:
    first = [row.title, _answers(row)]
    if not row.good:
        return [*first, "failed"] + [""] * (2 * len(comparison.connections) + len(comparison.shares) + 1)
    usual = row.closed(usual_load(comparison.connections))
    peaks = [max(loop.peak_bytes for loop in each.closed) / 2**20 for each in row.good]
    return [
        *first,
        *(_rate(comparison, row, connections) for connections in comparison.connections),
        *(_pair(row.closed(connections)) for connections in comparison.connections),
        *(_open(row.open(share)) for share in comparison.shares),
        Spread.of([loop.cpu_ms for loop in usual]).text(1),
        Spread.of(peaks).text(),
    ]


def _engine_cells(comparison: ServingComparison, row: EngineRow) -> list[str]:
    rates = [loop.requests_per_s for loop in row.loops]
    cells = [row.title, ""]
    for connections in comparison.connections:
        cells.append(_with_ratio(rates, _engine_ratios(comparison, rates, connections)))
    one_by_one = "one by one" in row.title
    cells.append(_pair(row.loops) if one_by_one else "")
    cells += [""] * (len(comparison.connections) - 1 + len(comparison.shares))
    cells.append(Spread.of([loop.cpu_ms for loop in row.loops]).text(1))
    cells.append(Spread.of([loop.peak_bytes / 2**20 for loop in row.loops]).text())
    return cells


def _engine_ratios(comparison: ServingComparison, rates: Sequence[float], connections: int) -> list[float]:
    baseline = _baseline(comparison)
    if baseline is None:
        return []
    theirs = [_rate_at(each, connections) for each in baseline.rounds]
    return [mine / their for mine, their in zip(rates, theirs, strict=True) if their]


def _rate(comparison: ServingComparison, row: Row, connections: int) -> str:
    baseline = _baseline(comparison)
    rates = [loop.requests_per_s for loop in row.closed(connections)]
    return _with_ratio(rates, ratios(row, baseline, connections) if baseline else [])


def _with_ratio(rates: Sequence[float], found: Sequence[float]) -> str:
    decimals = 0 if min(rates) >= 20 else 2
    ratio = f" {Spread.of(found).median:.2f}x" if found else ""
    return Spread.of(rates).text(decimals) + ratio


def _pair(loops: Sequence[Closed] | Sequence[EngineLoop]) -> str:
    return f"{_median(loops, lambda x: x.p50_ms)}/{_median(loops, lambda x: x.p99_ms)}"


def _open(loops: Sequence[Open]) -> str:
    if not loops:
        return ""
    columns: list[Callable[[Any], float]] = [lambda x: x.p50_ms, lambda x: x.p99_ms, lambda x: x.p999_ms]
    failed = sum(loop.failures for loop in loops)
    flags = (f", {failed} failed" if failed else "") + (
        ", client late" if any(loop.client_was_late for loop in loops) else ""
    )
    return f"{_median(loops, lambda x: x.rate)}/s: {'/'.join(_median(loops, c) for c in columns)}{flags}"


def _median(loops: Sequence[Any], figure: Callable[[Any], float]) -> str:
    value = Spread.of([figure(loop) for loop in loops]).median
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _answers(row: Row) -> str:
    checks = [each.checked for each in row.rounds if each.checked is not None]
    if not checks:
        return "none"
    worst = max(checks, key=lambda check: (check.wrong_labels, check.largest_difference))
    right = f"{worst.answers - worst.wrong_labels}/{worst.answers}, {worst.largest_difference:.0e}"
    return right if row.passed else f"**WRONG** {right}"


def _others(comparison: ServingComparison) -> list[str]:
    rounds = [each for row in comparison.rows for each in row.good]
    shares = [100 * loop.others for each in rounds for loop in each.closed]
    shares += [100 * loop.others for each in rounds for loop in each.open]
    if not shares:
        return []
    verdict = " **Too much to trust these figures.**" if Spread.of(shares).median > BUSY_PERCENT else ""
    return [f"Other work took {Spread.of(shares).text()}% of the machine's cores meanwhile.{verdict}"]


def _row_notes(row: Row) -> list[str]:
    found = [
        f"round {number} failed: {' '.join(each.failure.split())[:600]}"
        for number, each in enumerate(row.rounds, 1)
        if each.failure
    ]
    late = [loop for each in row.good for loop in each.open if loop.client_was_late]
    if late:
        count, worst = sum(len(each.open) for each in row.good), max(loop.late_p99_ms for loop in late)
        found.append(
            f"in {len(late)} of {count} open loops the client itself sent late (p99 up to {worst:.1f} ms), so these "
            "latencies are partly its own"
        )
    return found


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
