"""Classification: weights of labels, windows over long texts, and what a constant prediction reaches."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.metrics import f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from bert.data.examples import TextExample
from bert.encoding import Encoding
from bert.errors import ConfigError
from bert.nn import losses
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from tests.support.files import Write
from training.finetune import finetune
from training.settings import FinetuneSettings
from training.tasks.base import collate
from training.tasks.sequence import SequenceFinetuning

Make = Callable[..., FinetuneSettings]
CPU = torch.device("cpu")
SEVERAL: dict[str, Any] = {"problem": "multi_label"}


@pytest.fixture(scope="module")
def tokenizer(tiny_base: Path) -> Tokenizer:
    return Tokenizer.load(tiny_base)


def made(
    tokenizer: Tokenizer, counts: dict[str, float] | None = None, examples: float = 0, **changes: Any
) -> SequenceFinetuning:
    """Return a task with the labels a, b and c, ten tokens a text, and settings changed."""
    spec = {"problem_type": changes.get("problem", "single_label"), "pair": changes.pop("pair", False)}
    task = SequenceFinetuning(
        tokenizer, TaskSpec("classification", labels=("a", "b", "c"), max_tokens=10, stride=2, **spec)
    )
    task.configure(
        FinetuneSettings(task="classification", output_dir=Path("x"), **changes), counts or {}, examples
    )
    return task


def texts(*labels: Any, words: int = 3) -> list[TextExample]:
    return [TextExample("good " * words, None, label, str(n)) for n, label in enumerate(labels)]


def test_balanced_weights_agree_with_scikit_learn(tokenizer: Tokenizer) -> None:
    gold = ["a"] * 6 + ["b"] * 3 + ["c"]
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=np.array(gold))
    task = made(tokenizer, {"a": 6, "b": 3, "c": 1}, 10, class_weights="balanced")
    np.testing.assert_allclose(task.label_weights or (), expected)
    weights = [feature.weight for feature in task.features(texts(*gold))]
    assert sum(weights[:6]) == pytest.approx(sum(weights[6:9])) == pytest.approx(weights[9])


def test_balanced_weights_of_several_labels_are_those_of_texts_without_each(tokenizer: Tokenizer) -> None:
    task = made(tokenizer, {"a": 8, "b": 2}, 10, class_weights="balanced", **SEVERAL)
    assert task.label_weights == (0.25, 4.0, 1.0)
    assert [feature.weight for feature in task.features(texts(("a", "b"), ()))] == [1.0, 1.0]


def test_weights_are_given_by_name(tokenizer: Tokenizer) -> None:
    assert made(tokenizer, class_weights={"b": 3}).label_weights == (1.0, 3.0, 1.0)
    assert made(tokenizer).label_weights is None
    with pytest.raises(ConfigError, match="class_weights names d; the labels are a, b, c"):
        made(tokenizer, class_weights={"d": 3})


def test_weighted_losses_are_those_of_torch(tokenizer: Tokenizer) -> None:
    logits, weights = torch.randn(4, 3, generator=torch.manual_seed(0)), torch.tensor([1.0, 3.0, 1.0])
    task = made(tokenizer, class_weights={"b": 3})
    batch = collate(task.features(texts("a", "b", "b", "c")), 0, CPU)
    expected = F.cross_entropy(logits, torch.tensor([0, 1, 1, 2]), weight=weights, reduction="sum")
    loss = task.loss(logits, batch)
    torch.testing.assert_close(loss.total, expected)
    assert loss.targets == 4
    task = made(tokenizer, class_weights={"b": 3}, **SEVERAL)
    batch = collate(task.features(texts(("a", "b"), (), ("b",), ("c",))), 0, CPU)
    flags = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]]).float()
    expected = F.binary_cross_entropy_with_logits(logits, flags, pos_weight=weights, reduction="sum")
    torch.testing.assert_close(task.loss(logits, batch).total, expected)


def divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence of each row at temperature 2, times its square."""
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    return 4 * (p * (p / q).log()).sum(-1)


def test_class_weights_multiply_the_divergence_from_a_teacher(tokenizer: Tokenizer) -> None:
    logits, teacher = torch.randn(2, 4, 3, generator=torch.manual_seed(0))
    task = made(tokenizer, class_weights={"b": 3})
    features = task.features(texts("a", "b", "b", "c"))
    soft = [replace(each, soft=row.numpy()) for each, row in zip(features, teacher, strict=True)]
    found = task.soft_loss(logits, collate(soft, 0, CPU), 2.0)
    expected = (divergence(logits, teacher) * torch.tensor([1.0, 3.0, 3.0, 1.0])).sum()
    torch.testing.assert_close(found.total, expected)
    assert found.targets == 4


def test_class_weights_multiply_the_divergence_of_the_labels_that_a_text_has(tokenizer: Tokenizer) -> None:
    logits, teacher = torch.randn(2, 2, 3, generator=torch.manual_seed(0))
    task = made(tokenizer, class_weights={"b": 3}, **SEVERAL)
    features = task.features(texts(("a", "b"), ("c",)))
    soft = [replace(each, soft=row.numpy()) for each, row in zip(features, teacher, strict=True)]
    found = task.soft_loss(logits, collate(soft, 0, CPU), 2.0)
    with_absence = [torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, teacher)]
    expected = divergence(*with_absence) * torch.tensor([[1.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
    torch.testing.assert_close(found.total, expected.sum())


@pytest.mark.parametrize(
    ("problem", "label", "class_weights"),
    [
        ("single_label", "b", {"b": 3}),
        ("multi_label", ("a", "b"), "none"),
        ("multi_label", ("a", "b"), {"b": 3}),
        ("regression", 2.0, "none"),
    ],
)
def test_the_windows_of_a_text_learn_from_a_teacher_as_much_as_a_short_text(
    problem: str, label: Any, class_weights: Any, tokenizer: Tokenizer
) -> None:
    task = made(tokenizer, problem=problem, class_weights=class_weights, long_texts="windows")
    student, teacher = torch.randn(2, 1 if problem == "regression" else 3).tolist()

    def loss(words: int) -> float:
        rows = [replace(each, soft=np.array(teacher)) for each in task.features(texts(label, words=words))]
        assert (len(rows) > 1) == (words > 8)
        return float(task.soft_loss(torch.tensor([student] * len(rows)), collate(rows, 0, CPU), 2.0).total)

    assert loss(40) == pytest.approx(loss(3))


def test_macro_f1_decides_where_all_labels_weigh_alike(tokenizer: Tokenizer) -> None:
    assert made(tokenizer).metric == "accuracy"
    assert made(tokenizer, class_weights={"b": 3}).metric == "accuracy"
    assert made(tokenizer, {"a": 1}, class_weights="balanced").metric == "f1_macro"
    assert made(tokenizer, {"a": 1}, class_weights="balanced", **SEVERAL).metric == "f1_macro"


def test_weights_of_examples_multiply_their_losses() -> None:
    logits, weights = torch.randn(4, 3, generator=torch.manual_seed(0)), torch.tensor([1.0, 0.5, 2.0, 0.0])
    gold, flags = torch.tensor([0, 2, 1, 1]), torch.ones(4, 3)
    for loss, targets in (
        (losses.cross_entropy, gold),
        (losses.multi_label, flags),
        (losses.regression, flags),
    ):
        alone = [loss(logits[n : n + 1], targets[n : n + 1]).total for n in range(4)]
        expected = sum(weight * part for weight, part in zip(weights, alone, strict=True))
        torch.testing.assert_close(loss(logits, targets, weights).total, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "ner", "class_weights": "balanced"},
        {"task": "classification", "problem": "regression", "class_weights": {"a": 2}},
        {"task": "classification", "class_weights": {"a": 0}},
        {"task": "classification", "class_weights": "even"},
        {"task": "ner", "long_texts": "windows"},
        {"task": "classification", "long_texts": "windows", "teacher": {"checkpoint": "x"}},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"class_weights|long_texts"):
        FinetuneSettings(output_dir=Path("x"), **changes)


def test_the_windows_of_a_text_weigh_as_much_as_a_short_text(tokenizer: Tokenizer) -> None:
    task = made(tokenizer, long_texts="windows")
    features = task.features(texts("a", words=20) + texts("b", words=3))
    assert [(feature.target, feature.tokens) for feature in features] == [(0, 10), (0, 10), (0, 10), (1, 5)]
    assert [feature.weight for feature in features] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1])
    cut = made(tokenizer).features(texts("a", words=20))
    assert [(feature.tokens, feature.weight) for feature in cut] == [(10, 1.0)]
    np.testing.assert_array_equal(cut[0].encodings[0].ids, features[0].encodings[0].ids)


def test_the_logits_of_windows_are_averaged_and_the_beginning_is_scored_beside(tokenizer: Tokenizer) -> None:
    def predict(rows: Sequence[Encoding]) -> list[NDArray[np.float32]]:
        # Three windows of a long text, of which the first one is wrong, and a short text.
        assert len(rows) == 4
        return [np.array(row, np.float32) for row in ([0, 1, 0], [3, 0, 0], [3, 0, 0], [0, 1, 0])]

    found = made(tokenizer, long_texts="windows").evaluate(
        predict, texts("a", words=20) + texts("b", words=3)
    )
    assert (found.scores["accuracy"], found.scores["accuracy_truncated"]) == (1.0, 0.5)


def test_windows_over_pairs_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="reads one text, and this data has two"):
        made(tokenizer, pair=True, long_texts="windows")


def test_a_run_with_windows_and_balanced_labels_leaves_both_scores(settings_for: Make, write: Write) -> None:
    rows = [f"{'good ' * (60 if n == 3 else 5)},{'pos' if n % 3 else 'neg'}" for n in range(12)]
    file = write("long.csv", "text,label\n" + "\n".join(rows) + "\n")
    settings = settings_for(
        "classification",
        train=[{"path": file}],
        dev=[{"path": file, "name": "held"}],
        long_texts="windows",
        class_weights="balanced",
        max_tokens=16,
    )
    scores = TaskSpec.read(finetune(settings)).scores["held"]
    assert {"accuracy", "accuracy_truncated"} <= set(scores)
    page = (settings.output_dir / "report" / "report.md").read_text(encoding="utf-8")
    assert (
        "f1_macro is over all windows of a text, which bert-serve reads where a request sets windows" in page
    )
    assert ", the best by f1_macro on dev" in page


def test_the_best_constant_prediction_is_the_baseline(tokenizer: Tokenizer) -> None:
    single = made(tokenizer).baseline(texts("a", "b", "b", "c"))
    assert (single.rule, single.scores["accuracy"]) == ("always 'b'", 0.5)
    numbers = made(tokenizer, problem="regression").baseline(texts(1.0, 3.0))
    assert (numbers.rule, numbers.scores) == (
        "always the mean, 2",
        {"spearman": 0.0, "pearson": 0.0, "rmse": 1.0},
    )


def test_the_baseline_of_several_labels_has_the_best_micro_f1_of_all_constants(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    for share in (0.1, 0.4, 0.8):
        gold = (rng.random((30, 3)) < share * np.array([1, 0.7, 0.4])).astype(int)
        labels = [tuple(np.array(["a", "b", "c"])[row.astype(bool)]) for row in gold]
        constants = np.array(np.meshgrid([0, 1], [0, 1], [0, 1])).T.reshape(-1, 3)
        best = max(
            f1_score(gold, np.tile(row, (30, 1)), average="micro", zero_division=0.0) for row in constants
        )
        found = made(tokenizer, **SEVERAL).baseline(texts(*labels))
        assert found.scores["f1_micro"] == pytest.approx(best)
