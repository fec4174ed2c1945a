import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from bert.data.examples import ChoiceExample, QaExample, TextExample, WordsExample
from training.report import (
    DevFile,
    RunReport,
    as_markdown,
    draw_confusion,
    draw_curve,
    result_warnings,
    write_report,
)
from training.report.content import training_summary
from training.report.error_analysis import (
    Baseline,
    answer_findings,
    choice_findings,
    class_findings,
    entity_findings,
    multi_label_findings,
    number_findings,
)
from training.report.plots import score_lines, score_panel, smoothed

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


def test_classes_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold, given = (list(rng.choice(LABELS, 200)) for _ in range(2))
    found = class_findings(texts(*gold), given, LABELS)
    assert found.confusion is not None
    assert found.confusion.tolist() == confusion_matrix(gold, given, labels=list(LABELS)).tolist()
    expected = np.array(precision_recall_fscore_support(gold, given, labels=list(LABELS))).T
    ours = [list(found.by_class[label].values()) for label in LABELS]
    np.testing.assert_allclose(ours, expected)
    assert found.wrong == sum(a != b for a, b in zip(gold, given, strict=True))


def test_the_mistakes_of_which_the_model_was_most_sure_come_first() -> None:
    given = ["positive", "positive", "negative", "positive"]
    found = class_findings(
        texts("negative", "positive", "positive", "neutral"), given, LABELS, [0.6, 0.99, 0.7, 0.9]
    )
    assert [mistake.id for mistake in found.mistakes] == ["3", "2", "0"]
    assert found.mistakes[0].confidence == 0.9


def test_no_more_than_twenty_mistakes_are_shown_and_all_are_counted() -> None:
    found = class_findings(texts(*["negative"] * 50), ["positive"] * 50, LABELS)
    assert len(found.mistakes) == 20
    assert found.wrong == 50


def test_several_labels_are_scored_label_by_label() -> None:
    found = multi_label_findings(texts(("a", "b"), ("a",), ()), [("a",), ("b",), ()], ("a", "b"))
    assert found.by_class["a"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2}
    assert [m.id for m in found.mistakes] == ["1", "0"]
    assert found.mistakes[1].predicted == "a"


def test_numbers_farthest_off_in_rank_come_first_whatever_the_scale() -> None:
    found = number_findings(texts(0.0, 2.5, 5.0, 4.0), [0.9, 0.2, 0.8, 0.4])
    assert found.mistakes[0].id == "0"
    with pytest.raises(ValueError, match="3 predictions for 4 examples"):
        number_findings(texts(0.0, 2.5, 5.0, 4.0), [0.9, 0.2, 0.8])


def test_kinds_of_entity_mistakes_are_told_apart() -> None:
    words = ("Ada", "Lovelace", "saw", "London", "and", "Rome", "with", "Bob", "in", "May")
    gold = ("B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC", "O", "B-PER", "O", "O")
    given = ("B-PER", "O", "O", "B-ORG", "O", "B-LOC", "O", "O", "O", "B-PER")
    found = entity_findings([WordsExample(words, gold, "7")], [given])
    assert found.counts == {"wrong ends": 1, "wrong type": 1, "invented": 1, "missed": 1}
    assert found.by_class["LOC"] == {
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
        "support": 2,
    }
    assert found.mistakes[0].gold == "PER[Ada Lovelace], LOC[London], LOC[Rome], PER[Bob]"
    assert found.mistakes[0].predicted == "PER[Ada], ORG[London], LOC[Rome], PER[May]"


def test_kinds_of_answers_are_told_apart() -> None:
    def question(number: int, *answers: tuple[str, int]) -> QaExample:
        return QaExample(str(number), "Who?", "Ada Lovelace wrote it.", answers, "")

    ada = ("Ada Lovelace", 0)
    examples = [
        question(0, ada),
        question(1, ada),
        question(2, ada),
        question(3, ada),
        question(4),
        question(5),
    ]
    found = answer_findings(examples, ["ada lovelace!", "Lovelace", "it", "", "", "Ada"])
    assert found.counts == {
        "right": 1, "partly right": 1, "wrong": 1, "no answer where there is one": 1,
        "rightly no answer": 1, "answered where there is no answer": 1,
    }  # fmt: skip
    assert found.wrong == 4
    assert found.mistakes[-1].id == "1"  # partly right comes last
    assert found.mistakes[0].text == "Who? ↵ Ada Lovelace wrote it."


def test_classes_that_are_never_predicted_are_named() -> None:
    given = ["positive", "positive", "positive"]
    single = class_findings(texts("negative", "positive", "positive"), given, LABELS)
    assert single.never_predicted == ("negative",)  # no text is neutral, so that one is not missed
    several = multi_label_findings(texts(("a", "b"), ("c",)), [("a",), ("a",)], ("a", "b", "c", "d"))
    assert several.never_predicted == ("b", "c")
    words = WordsExample(("Ada", "in", "Rome"), ("B-PER", "O", "B-LOC"), "1")
    assert entity_findings([words], [("B-PER", "O", "O")]).never_predicted == ("LOC",)
    questions = [QaExample("1", "Who?", "Ada.", (("Ada", 0),), ""), QaExample("2", "Who?", "Ada.", (), "")]
    assert answer_findings(questions, ["Ada", "Ada"]).never_predicted == ("no answer",)
    assert answer_findings(questions, ["", ""]).never_predicted == ("an answer",)


def test_choices_show_the_ending_that_was_taken() -> None:
    found = choice_findings([ChoiceExample("He", ("sits.", "flies."), 0, "1")], [1])
    assert (found.mistakes[0].gold, found.mistakes[0].predicted) == ("sits.", "flies.")


def test_a_mistake_shows_how_sure_the_model_was() -> None:
    found = class_findings(texts("negative"), ["positive"], LABELS, [0.8])
    assert found.mistakes[0].confidence == 0.8
    assert multi_label_findings(texts(("a",)), [("a",)], ("a",)).wrong == 0


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


@pytest.mark.parametrize(
    ("values", "low", "high"), [((0.71, 0.73), 0, 1), ((-0.2, 0.1), -0.2, 1), ((0.2, 3.0), 0, 3)]
)
def test_a_flat_score_looks_flat(values: tuple[float, float], low: float, high: float) -> None:
    axes = Figure().subplots()
    score_panel(axes, {"dev accuracy": ([1, 2], list(values))}, 2, {"dev baseline": 0.7})
    bottom, top = axes.get_ylim()
    assert bottom == pytest.approx(low - 0.02 * (high - low))
    assert top == pytest.approx(high + 0.02 * (high - low))
    assert "dev baseline" in axes.get_legend_handles_labels()[1]


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


def test_smoothing_is_the_mean_around_each_point() -> None:
    values = list(np.random.default_rng(0).random(500))
    slow = [np.mean(values[max(0, n - 5) : n + 6]) for n in range(500)]
    np.testing.assert_allclose(smoothed(values), slow)


def test_there_is_a_line_for_each_dev_file() -> None:
    assert score_lines(EVALUATIONS, "accuracy") == {"dev accuracy": ([50, 100], [0.8, 0.9])}
    flat = [{"step": 1, "scores": {"f1": 0.5, "exact": 0.4}}]
    assert score_lines(flat, "exact") == {"dev exact": ([1], [0.4])}
    assert score_lines(flat, "missing") == {"dev f1": ([1], [0.5])}


def test_pictures_are_drawn_for_short_runs_many_classes_and_other_scripts(tmp_path: Path) -> None:
    draw_curve(tmp_path / "short.png", HISTORY[:1])
    draw_confusion(tmp_path / "many.png", np.eye(40, dtype=np.int64), [f"class {n}" for n in range(40)])
    draw_confusion(tmp_path / "chinese.png", np.eye(2, dtype=np.int64), ["好评", "差评"])
    for name in ("short", "many", "chinese"):
        with Image.open(tmp_path / f"{name}.png") as image:
            assert np.asarray(image.convert("L")).std() > 5  # something is on it
