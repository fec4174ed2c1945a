"""The report of a fine-tuning run and its warnings."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bert.data.examples import TextExample
from training.report.checks import result_warnings
from training.report.error_analysis import Baseline, DevFile, class_findings
from training.report.finetuning import (
    RunReport,
    as_markdown,
    curve_panels,
    score_lines,
    write_report,
)
from training.report.page import training_summary
from training.report.plots import Line

LABELS = ("negative", "neutral", "positive")
HISTORY = [
    {"step": n, "tokens": n * 1000.0, "loss": 2 / n, "lr": 1e-4, "tokens_per_second": 500.0}
    for n in range(1, 101)
]
EVALUATIONS: list[dict[str, Any]] = [
    {"step": 50, "scores": {"dev": {"accuracy": 0.8}}}, {"step": 100, "scores": {"dev": {"accuracy": 0.9}}},
]  # fmt: skip


def texts(*labels: Any) -> list[TextExample]:
    return [TextExample(f"text {n}", None, label, str(n)) for n, label in enumerate(labels)]


@pytest.mark.usefixtures("pictures")
def test_a_report_is_a_page_numbers_and_pictures(tmp_path: Path) -> None:
    found = class_findings(texts("negative", "positive"), ["negative", "negative"], LABELS)
    dev = [DevFile("squad/dev", {"accuracy": 0.5}, found), DevFile("other", {"f1": 1.0})]
    report = RunReport(
        "Sentiment", dev, HISTORY, EVALUATIONS, "accuracy", 100, "bert-finetune x", {"seed": 1}
    )
    page = write_report(tmp_path / "report", report).read_text(encoding="utf-8")
    assert "100 steps over 100,000 tokens in 3 min 20 s, 500 tokens a second; loss at the end 0.0210." in page
    assert "| squad/dev | 0.5000 |  |" in page
    assert "1 of 2 not wholly right" in page
    numbers = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert numbers["dev"]["squad/dev"]["confusion"] == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert numbers["dev"]["squad/dev"]["mistakes"][0]["gold"] == "positive"
    assert numbers["settings"] == {"seed": 1}
    for picture in ("curve.png", "confusion-squad-dev.png"):
        assert f"]({picture})" in page
        with Image.open(tmp_path / "report" / picture) as image:
            assert image.width > 300


def falling(first: float, last: float, steps: int = 100) -> list[dict[str, float]]:
    return [dict(HISTORY[0], step=n, loss=first + (last - first) * n / steps) for n in range(1, steps + 1)]


def dev_file(accuracy: float, *given: str) -> DevFile:
    gold = texts("negative", "positive", "positive")
    baseline = Baseline("always 'positive'", {"accuracy": 2 / 3})
    return DevFile("dev", {"accuracy": accuracy}, class_findings(gold, given, LABELS), baseline)


def test_a_run_that_learned_little_is_warned_of() -> None:
    useless = dev_file(2 / 3, "positive", "positive", "positive")
    never, below, flat = result_warnings([useless], "accuracy", falling(1.1, 1.09))
    assert never == "dev: the model never predicts 'negative', which the file has"
    assert below == "dev: accuracy 0.6667 is no better than the baseline's 0.6667 (always 'positive')"
    assert flat.startswith(
        "the training loss did not fall: 1.0995 over the first 10 steps, 1.0904 over the last"
    )
    good = dev_file(1.0, "negative", "positive", "positive")
    assert result_warnings([good], "accuracy", falling(1.1, 0.5)) == []
    assert result_warnings([good], "accuracy", falling(1.1, 1.1, steps=19)) == []  # too short to say


def test_an_error_no_smaller_than_the_means_is_warned_of() -> None:
    baseline = Baseline("always the mean, 2", {"spearman": 0.0, "rmse": 1.0})
    file = DevFile("dev", {"spearman": 0.5, "rmse": 1.2}, None, baseline)
    assert result_warnings([file], "spearman", []) == [
        "dev: rmse 1.2000 is no better than the baseline's 1.0000 (always the mean, 2)"
    ]


def test_a_report_shows_warnings_and_baselines(tmp_path: Path) -> None:
    file = dev_file(0.5, "positive", "positive", "negative")
    page = as_markdown(RunReport("Run", [file], warnings=["the *loss* did not fall"], recipe="epochs 5"))
    assert "## Warnings\n\n- the \\*loss\\* did not fall\n" in page
    assert "| baseline: always 'positive' | 0.6667 |" in page
    assert "epochs 5." in page
    write_report(tmp_path, RunReport("Run", [file], warnings=["cut"]))
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert content["warnings"] == ["cut"]
    assert content["dev"]["dev"]["baseline"] == {"rule": "always 'positive'", "scores": {"accuracy": 0.6667}}
    assert content["dev"]["dev"]["never_predicted"] == []


def test_a_report_without_dev_data_says_so(tmp_path: Path) -> None:
    page = write_report(tmp_path, RunReport("Run", [], HISTORY)).read_text(encoding="utf-8")
    assert "No held-out data" in page


def test_texts_of_users_do_not_break_the_page() -> None:
    evil = TextExample("a|b\n\n# <script>alert(1)</script> *x* [y](z)", None, "negative", "1")
    found = class_findings([evil], ["positive"], LABELS)
    page = as_markdown(RunReport("Run", [DevFile("dev", {"accuracy": 0.0}, found)]))
    assert "> a\\|b \\# \\<script\\>alert(1)\\</script\\> \\*x\\* \\[y\\](z)\n" in page


def test_a_long_history_is_thinned_in_json_only(tmp_path: Path) -> None:
    history = [dict(HISTORY[0], step=n, tokens=n * 10.0) for n in range(1, 3001)]
    write_report(tmp_path, RunReport("Run", [], history))
    kept = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["history"]
    assert len(kept) == 500


def test_the_time_of_a_run_is_that_of_its_steps() -> None:
    assert training_summary(HISTORY)["seconds"] == 200.0
    assert training_summary([]) == {}


def test_there_is_a_line_for_each_dev_file() -> None:
    assert score_lines(EVALUATIONS, "accuracy") == [Line("dev accuracy", [50, 100], [0.8, 0.9])]
    both = [{"step": 1, "scores": {"dev": {"f1": 0.5, "exact": 0.4}}}]
    assert score_lines(both, "exact") == [Line("dev exact", [1], [0.4])]
    assert score_lines(both, "missing") == [Line("dev f1", [1], [0.5])]


def test_the_curve_shows_loss_scores_baseline_and_best_step() -> None:
    file = dev_file(0.9, "negative", "positive", "positive")
    loss, scores = curve_panels(RunReport("Run", [file], HISTORY, EVALUATIONS, "accuracy", best_step=100))
    assert list(loss.lines[0].values) == [2 / n for n in range(1, 101)]
    assert scores.levels == {"dev baseline": 2 / 3} and scores.best_step == 100
    assert len(curve_panels(RunReport("Run", [file], HISTORY))) == 1
