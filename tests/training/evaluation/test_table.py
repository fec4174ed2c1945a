"""The table of a comparison, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.table import NOTE, Cell, as_json, as_markdown


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_mean_and_deviation_are_those_of_numpy(scores: list[float]) -> None:
    cell = Cell("f1", dict(enumerate(scores)))
    assert cell.mean == pytest.approx(np.mean(scores))
    assert cell.deviation == pytest.approx(np.std(scores, ddof=1), abs=1e-9)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell("f1", {1: 0.913, 2: 0.917, 3: 0.909}), "91.3 ± 0.4 (3)"),
        (Cell("f1", {1: 0.913}), "91.3 (1)"),
        (Cell("f1", {1: 0.5, 2: 0.5}, {3: "loss is nan"}), "50.0 ± 0.0 (2) 1 failed"),
        (Cell("", {}, {3: "loss is nan"}), "1 failed"),
        (Cell(), ""),
    ],
)
def test_a_cell_says_mean_deviation_and_how_many_runs(cell: Cell, text: str) -> None:
    assert str(cell) == text


CELLS = {
    ("mlm", "sst2"): Cell("accuracy", {1: 0.8, 2: 0.9}),
    ("mlm", "ner"): Cell("f1", {1: 0.5}),
    ("a|b", "sst2"): Cell("accuracy", {1: 0.6}),
    ("a|b", "ner"): Cell(),
}


def test_columns_are_aligned_and_rows_with_a_gap_have_no_average() -> None:
    assert as_markdown(CELLS, ["mlm", "a|b"], ["sst2", "ner"]) == (
        "| checkpoint |  sst2 accuracy |   ner f1 | average |\n"
        "| ---------- | -------------: | -------: | ------: |\n"
        "| mlm        | 85.0 ± 7.1 (2) | 50.0 (1) |    67.5 |\n"
        "| a\\|b       |       60.0 (1) |          |         |\n"
        f"\n{NOTE}\n"
    )


def test_the_json_holds_the_numbers_unrounded() -> None:
    mlm = as_json(CELLS, ["mlm"], ["sst2", "ner"])["mlm"]
    assert mlm["average"] == pytest.approx(0.675)
    assert mlm["tasks"]["sst2"]["sd"] == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert mlm["tasks"]["sst2"]["scores"] == {"1": 0.8, "2": 0.9}
    assert mlm["tasks"]["ner"] == {
        "metric": "f1", "mean": 0.5, "sd": None, "n": 1, "scores": {"1": 0.5}, "failed": {}
    }  # fmt: skip
