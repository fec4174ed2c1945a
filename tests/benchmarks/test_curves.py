"""The curves beside transformers: the verdict, and the whole command on a few steps."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.training.curves.page import comparisons, smoothed, table
from benchmarks.training.curves.runs import Curve
from benchmarks.training.curves.verdict import Comparison

ROOT = Path(__file__).parents[2]


def test_a_difference_within_two_standard_errors_is_noise() -> None:
    # Variances 0.01 and 0.01 over three seeds: the standard error is 0.0816.
    assert Comparison([1.0, 1.1, 1.2], [1.16, 1.26, 1.36]).is_noise
    assert not Comparison([1.0, 1.1, 1.2], [1.17, 1.27, 1.37]).is_noise


def test_the_largest_difference_of_a_seed_pairs_the_seeds() -> None:
    assert Comparison([1.0, 2.0], [2.0, 1.0]).largest_of_a_seed == 1.0


def test_without_held_out_scores_the_training_loss_is_compared() -> None:
    curve = Curve([2.0] * 10 + [1.0] * 10, {})
    assert list(comparisons([(curve, curve)] * 2)) == ["training loss"]
    assert comparisons([(curve, curve)] * 2)["training loss"].ours == [1.0, 1.0]
    assert smoothed(curve)[10] == 2.0


def test_the_table_names_what_differs() -> None:
    near, far = Curve([1.0], {0: 3.0, 1: 1.0}), Curve([1.0], {0: 3.0, 1: 1.5})
    rows = table({"bert": [(near, far), (near, far)]}).splitlines()
    assert rows[2].endswith("| DIFFERS |") and "held-out loss" in rows[2]
    assert rows[3].endswith("| same |") and "training loss" in rows[3]


def test_the_command_leaves_table_figure_and_numbers(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    words = ["one", "small", "dog", "sees", "two", "large", "birds", "and", "nobody", "hears", "them", "sing"]
    lines = [" ".join(words[i % 7 : i % 7 + 5]).capitalize() + "." for i in range(400)]
    texts.write_text("\n\n".join(" ".join(lines[i : i + 10]) for i in range(0, 400, 10)))
    options = [
        "--sources",
        str(texts),
        "--out",
        str(tmp_path / "out"),
        "--recipes",
        "no_nsp",
        "left_to_right",
    ]
    options += ["--seeds", "2", "--steps", "4", "--vocab-size", "256"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.curves", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "out" / "curves.svg").is_file(), done.stderr
    numbers = json.loads((tmp_path / "out" / "curves.json").read_text())
    assert len(numbers["no_nsp"]["held-out loss"]["ours"]) == 2
    assert set(numbers["left_to_right"]) == {"training loss"}
    assert "| `no_nsp` | held-out loss |" in (tmp_path / "out" / "table.md").read_text()
