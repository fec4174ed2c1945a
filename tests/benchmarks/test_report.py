"""The table of made-up rounds."""

import json
from dataclasses import replace
from pathlib import Path

from benchmarks.serve.load.answers import Check
from benchmarks.serve.load.measure import Closed, EngineLoop, Open, Round
from benchmarks.serve.report.report import EngineRow, Row, ServingComparison, as_json, notes, ratios, table

OPEN = Open(0.8, 80.0, 5.0, 20.0, 40.0, 1600, 0, 0.3, False, 16, 6.0, 2**20, 0.02)


def closed(connections: int, rate: float) -> Closed:
    return Closed(connections, rate, 10.0, 30.0, 100, 6.4, 0.3, 100 * 2**20, 0.02)


def a_round(*rates: float) -> Round:
    loops = [closed(connections, rate) for connections, rate in zip((1, 32), rates, strict=True)]
    return Round(Check(16, 0, 2e-6), loops, [OPEN])


def compared(*rows: Row) -> ServingComparison:
    loops = [EngineLoop("one by one", rate, 4.0, 9.0, 6.0, 2**20) for rate in (120.0, 180.0)]
    return ServingComparison(
        ["head"], [EngineRow("engine: one by one", loops)], rows, "base", (1, 32), (0.8,)
    )


BASE = Row("base", "Base", [a_round(50, 60), a_round(100, 90)], True)
OURS = Row("ours", "Ours", [a_round(100, 180), a_round(210, 270)], True)


def line(text: str, title: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {title}"))


def test_rates_are_compared_with_the_baseline_of_the_same_round() -> None:
    assert ratios(OURS, BASE, 1) == [2.0, 2.1] and ratios(OURS, BASE, 32) == [3.0, 3.0]
    cells = line(table(compared(BASE, OURS)), "Ours")
    assert "155 (100-210) 2.05x" in cells and "225 (180-270) 3.00x" in cells
    assert "16/16, 2e-06" in cells and "10.0/30.0" in cells and "80.0/s: 5.0/20.0/40.0" in cells
    assert "150 (120-180) 2.10x" in line(table(compared(BASE, OURS)), "engine")


def test_every_line_has_the_same_cells() -> None:
    failed = Row("x", "Failed", [Round(failure="it ended with 1"), Round(failure="it ended with 1")], False)
    text = table(compared(BASE, OURS, failed))
    assert len({each.count("|") for each in text.splitlines()}) == 1
    assert "| none | failed |" in line(text, "Failed")
    assert "Failed: round 1 failed: it ended with 1" in notes(compared(failed))


def test_a_round_that_failed_does_not_count() -> None:
    half = Row("half", "Half", [replace(a_round(999, 999), failure="503"), a_round(100, 180)], True)
    assert "| 100 1.00x | 180 2.00x |" in line(table(compared(BASE, half)), "Half")


def test_wrong_answers_are_shown_so() -> None:
    wrong = Round(Check(16, 3, 0.2), [closed(1, 10), closed(32, 10)], [OPEN])
    row = Row("wrong", "Wrong", [a_round(10, 10), wrong], False)
    assert "**WRONG** 13/16, 2e-01" in line(table(compared(row)), "Wrong")


def test_a_late_client_and_failures_are_said() -> None:
    late = replace(OPEN, client_was_late=True, late_p99_ms=7.5, failures=3)
    row = Row("late", "Late", [Round(Check(1, 0, 0.0), [closed(1, 10), closed(32, 10)], [late])], True)
    assert "3 failed, client late" in line(table(compared(row)), "Late")
    assert "in 1 of 1 open loops the client itself sent late (p99 up to 7.5 ms)" in notes(compared(row))


def test_a_busy_machine_is_said() -> None:
    assert "Other work took 2% of the machine's cores meanwhile.\n" in notes(compared(BASE)) + "\n"
    loops = [replace(loop, others=0.4) for loop in BASE.rounds[0].closed]
    busy = Row("busy", "Busy", [replace(BASE.rounds[0], closed=loops)], True)
    assert "Other work took 40 (2-40)% of the machine's cores meanwhile. **Too much" in notes(compared(busy))


def test_without_a_baseline_there_are_no_ratios() -> None:
    assert "x |" not in line(table(compared(OURS)), "Ours")
    assert "not measured" in notes(compared(OURS))


def test_all_figures_are_kept(tmp_path: Path) -> None:
    content = json.loads(as_json(compared(BASE, OURS)))
    assert content["rows"][1]["rounds"][1]["closed"][0]["requests_per_s"] == 210


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    from benchmarks.serve.report.plot import draw

    failed = Row("x", "Failed", [Round(failure="it ended with 1")], False)
    draw(compared(BASE, OURS, failed), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
