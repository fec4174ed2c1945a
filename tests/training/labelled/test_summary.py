"""What is said of data files before training: labels, and inputs over the limit."""

import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert.data.examples import QaExample, TextExample, WordsExample
from tests.support.files import Write
from training.finetune import finetune
from training.labelled.summary import Lengths, summarize
from training.report.checks import data_warnings
from training.settings import FinetuneSettings

Make = Callable[..., FinetuneSettings]
SHORT = Lengths(np.array([3]), 64)


def texts(*labels: Any) -> list[TextExample]:
    return [TextExample(f"text {n}", None, label, str(n)) for n, label in enumerate(labels)]


def said(examples: list[Any], *labels: str) -> str:
    return summarize("train", "x", examples, labels, SHORT, 512).sentence


def test_the_examples_of_each_label_are_counted() -> None:
    assert said(texts("a", "b", "b", "b"), "a", "b", "c") == (
        "train x: 4 texts: b 3 (75.0%), a 1 (25.0%), c 0 (0.0%)"
    )
    assert said(texts(("a", "b"), ("b",), ()), "a", "b") == "train x: 3 texts: b 2 (66.7%), a 1 (33.3%)"
    assert said(texts(1.0, 2.0, 4.5), "score") == "train x: 3 texts, scores from 1 to 4.5, mean 2.5"
    pair = TextExample("one", "two", "a", "1")
    assert said([pair], "a") == "train x: 1 pairs: a 1 (100.0%)"


def test_only_the_commonest_of_many_labels_are_listed() -> None:
    many = [f"c{n:02}" for n in range(30) for _ in range(n + 1)]
    line = said(texts(*many), *sorted(set(many)))
    assert line.startswith("train x: 465 texts: c29 30 (6.5%), c28 29")
    assert line.endswith("and 18 more labels, the rarest c00 1")


def test_entities_and_answers_are_counted() -> None:
    words = WordsExample(("Ada", "saw", "New", "York"), ("B-PER", "O", "B-LOC", "I-LOC"), "1")
    labels = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert said([words, words], *labels) == "train x: 2 sentences: LOC 2 (50.0%), PER 2 (50.0%), ORG 0 (0.0%)"
    questions = [QaExample("1", "Who?", "Ada.", (("Ada", 0),), ""), QaExample("2", "Who?", "Ada.", (), "")]
    assert said(questions) == "train x: 2 questions: with an answer 1 (50.0%), without an answer 1 (50.0%)"


def test_texts_over_the_limit_are_counted_and_a_limit_that_cuts_few_is_named() -> None:
    tokens = np.array([30] * 700 + [100] * 260 + [200] * 25 + [2500] * 15)
    assert Lengths(tokens, 64).sentence(512) == (
        "300 of 1,000 texts (30.0%) are longer than max_tokens 64 and are cut; the longest has 2,500 tokens; "
        "max_tokens 128 would cut 4.0%"
    )
    assert Lengths(tokens[:985], 64).sentence(100).endswith("max_tokens 100 would cut 2.5%")
    assert Lengths(tokens, 256).sentence(512).endswith("the longest has 2,500 tokens")  # 512 would not help
    assert Lengths(tokens[:960], 64).sentence(512).endswith("max_tokens 128 would cut none")
    assert Lengths(np.array([400, 900]), 64).sentence(512).endswith("max_tokens 512 would cut 50.0%")
    assert Lengths(tokens, 512).sentence(512).endswith("the longest has 2,500 tokens")
    assert Lengths(tokens[:700], 64).sentence(512) == ""
    windows = Lengths(tokens, 64, unit="sentences", in_windows=True).sentence(512)
    assert windows.endswith(
        "(30.0%) are longer than max_tokens 64 and are read in windows; the longest has 2,500 tokens"
    )


def test_many_cut_texts_and_labels_without_an_example_are_warned_of() -> None:
    tokens = np.array([10] * 94 + [99] * 6)
    examples = texts(*["a", "b"] * 50)
    cut = summarize("train", "x", examples, ("a", "b", "c"), Lengths(tokens, 64), 512)
    few = summarize("dev", "y", examples, ("a", "b", "c"), Lengths(tokens[:-2], 98), 512)
    unseen, longer = data_warnings([cut, few])
    assert unseen == "no training example has the label 'c': it cannot be learned"
    assert longer.startswith("train x: 6 of 100 texts (6.0%) are longer than max_tokens 64 and are cut")


def test_a_run_says_before_training_what_it_cuts_and_the_report_says_it_again(
    settings_for: Make, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{'good ' * (2500 if n == 3 else 5)},{'pos' if n % 3 else 'neg'}" for n in range(12)]
    file = write("long.csv", "text,label\n" + "\n".join(rows) + "\n")
    settings = settings_for("classification", train=[{"path": file}], dev=[{"path": file, "name": "held"}])
    with caplog.at_level(logging.INFO):
        finetune(settings)
    lines = caplog.messages
    assert "train long: 12 texts: pos 8 (66.7%), neg 4 (33.3%)" in lines
    cut = "1 of 12 texts (8.3%) are longer than max_tokens 48 and are cut; the longest has 2,502 tokens"
    assert f"train long: {cut}" in lines
    assert f"dev held: {cut}" in lines
    folder = settings.output_dir / "report"
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [(file["part"], file["longer"], file["longest"]) for file in report["data"]] == [
        ("train", 1, 2502), ("dev", 1, 2502),
    ]  # fmt: skip
    assert f"train long: {cut}" in report["warnings"]
    assert report["dev"]["held"]["baseline"]["scores"]["accuracy"] == pytest.approx(8 / 12, abs=1e-4)
    assert cut in (folder / "report.md").read_text(encoding="utf-8")
