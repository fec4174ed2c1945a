"""Fine-tuning for classification of a text or a pair: one label, any number of labels, or a number."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert.config import BertConfig
from bert.data.examples import TextExample
from bert.encoding import Encoding
from bert.errors import ConfigError
from bert.metrics.classification import accuracy, f1_binary, f1_macro, f1_multi_label, matthews
from bert.metrics.correlation import pearson, spearman
from bert.nn import losses
from bert.nn.heads import BertForSequenceClassification, BertHead
from bert.nn.losses import Loss
from bert.tasks.classification import predict as choose
from bert.tasks.task import softmax
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import (
    TRUNCATED,
    Baseline,
    class_findings,
    multi_label_findings,
    number_findings,
)
from training.settings import FinetuneSettings
from training.tasks.base import Evaluation, Feature, FeatureBatch, FinetuneTask, Floats, Predict, token_counts

RMSE = "rmse"
"""Root of the mean squared error, the one score of which less is better; it does not decide."""


class SequenceFinetuning(FinetuneTask):
    """Labels from the pooled [CLS]."""

    architecture = "BertForSequenceClassification"

    windows = False
    """True where a text over the limit is read in windows and not cut."""
    label_weights: tuple[float, ...] | None = None
    """Factor of each label's loss; None where all are 1. With several labels a text, it counts for those the text has."""
    balanced = False
    """True where all labels weigh alike, whatever their counts."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the scores that may decide, the default first."""
        if self.spec.problem_type == "single_label":
            return ("accuracy", "f1_macro", "matthews", *(("f1",) if len(self.spec.labels) == 2 else ()))
        several = self.spec.problem_type == "multi_label"
        return ("f1_micro", "f1_macro", "accuracy") if several else ("spearman", "pearson")

    @property
    def metric(self) -> str:
        """Name of the score that decides by default: macro F1 where all labels weigh alike in the loss."""
        return "f1_macro" if self.balanced else self.metrics[0]

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with one output a label."""
        return BertForSequenceClassification(config, len(self.spec.labels))

    def configure(
        self, settings: FinetuneSettings, label_counts: Mapping[str, float], examples: float, world: int = 1
    ) -> None:
        """Take over class weights and windows. Raises ConfigError for a weight of an unknown label."""
        self.windows = settings.long_texts == "windows"
        if self.windows and self.spec.pair:
            raise ConfigError("long_texts 'windows' reads one text, and this data has two an example")
        given, labels = settings.class_weights, self.spec.labels
        self.balanced = given == "balanced"
        if given == "none":
            self.label_weights = None
        elif given == "balanced":
            several = self.spec.problem_type == "multi_label"
            self.label_weights = balanced(labels, label_counts, examples if several else None)
        else:
            self.label_weights = named_weights(labels, given)

    def rows(self, examples: Sequence[TextExample]) -> list[list[Encoding]]:
        """Encode texts or pairs, each as one row that loses its end, or as windows over all of it."""
        firsts, limit = self.tokenizer.pieces([example.text for example in examples]), self.spec.max_tokens
        if self.windows:
            cut = [self.tokenizer.windows(first, limit, self.spec.stride) for first in firsts]
            return [[window.encoding for window in windows] for windows in cut]
        if not self.spec.pair:
            return [[self.tokenizer.single(first, limit, truncate=True)] for first in firsts]
        seconds = self.tokenizer.pieces([example.text_pair or "" for example in examples])
        return [
            [self.tokenizer.pair(first, second, limit, truncate=True)]
            for first, second in zip(firsts, seconds, strict=True)
        ]

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        """Make a feature a row; the windows of a text weigh together as much as a short text."""
        return [
            Feature((row,), self._target(example.label), weight=self._weight(example.label) / len(rows))
            for rows, example in zip(self.rows(examples), examples, strict=True)
            for row in rows
        ]

    def _weight(self, label: Any) -> float:
        if self.label_weights is None or self.spec.problem_type != "single_label":
            return 1.0
        return self.label_weights[self.spec.labels.index(label)]

    def _target(self, label: Any) -> Any:
        if self.spec.problem_type == "single_label":
            return self.spec.labels.index(label)
        if self.spec.problem_type == "multi_label":
            return [float(name in label) for name in self.spec.labels]
        return [float(label)]

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compute cross entropy, binary cross entropy of each label, or squared error."""
        targets, weights = send(torch.tensor(batch.targets), logits.device), batch.weights
        if self.spec.problem_type == "single_label":
            return losses.cross_entropy(logits, targets, weights, count=len(targets))
        if self.spec.problem_type == "multi_label":
            given = self.label_weights
            positive = None if given is None else send(torch.tensor(given), logits.device)
            return losses.multi_label(logits, targets, weights, positive)
        return losses.regression(logits, targets, weights)

    def soft_loss(self, logits: Tensor, batch: FeatureBatch, temperature: float) -> Loss:
        """Compare with the teacher: its classes, each of several labels by itself, or its number.

        Class weights and the shares of windows count as in `loss`: a class weight for the label of a text, or for each of
        several that it has.
        """
        teacher = send(torch.from_numpy(np.stack(batch.soft)), logits.device)
        if self.spec.problem_type == "single_label":
            return losses.soft_targets(logits, teacher, temperature, batch.weights)
        if self.spec.problem_type == "multi_label":
            ours, theirs = _two_classes(logits), _two_classes(teacher)
            return losses.soft_targets(
                ours, theirs, temperature, self._weights_by_label(batch, logits.device)
            )
        return losses.regression(logits, teacher, batch.weights)

    def _weights_by_label(self, batch: FeatureBatch, device: torch.device) -> Tensor | None:
        """Return the factor of each label of each text, (B, K) or the same for all labels (B, 1); None where all are 1."""
        shares = None if batch.weights is None else batch.weights[:, None]
        if self.label_weights is None:
            return shares
        has, given = torch.tensor(batch.targets), torch.tensor(self.label_weights)
        by_label = send(torch.where(has > 0, given, 1.0), device)
        return by_label if shares is None else by_label * shares

    def disagreement(self, logits: Tensor, again: Tensor, batch: FeatureBatch) -> Tensor:
        """Compare the distributions of two readings, or those of each of several labels."""
        weights = batch.weights
        if self.spec.problem_type == "single_label":
            return losses.symmetric_kl(logits, again, weights)
        each = None if weights is None else weights[:, None]
        return losses.symmetric_kl(_two_classes(logits), _two_classes(again), each)

    def evaluate(self, predict: Predict, examples: Sequence[TextExample]) -> Evaluation:
        """Score accuracy and F1, or correlations for numbers; the logits of windows are averaged.

        Scores of truncated texts, as the service answers with `truncate`, end in `_truncated`.
        """
        rows = self.rows(examples)
        logits = iter(predict([row for windows in rows for row in windows]))
        parts = [[next(logits) for _ in windows] for windows in rows]
        whole = np.stack([np.mean(windows, axis=0) for windows in parts])  # (N, K)
        found = self._evaluation(whole, examples)
        if any(len(windows) > 1 for windows in parts):
            beginnings = self._evaluation(np.stack([windows[0] for windows in parts]), examples)
            found.scores.update({f"{name}{TRUNCATED}": value for name, value in beginnings.scores.items()})
        return found

    def _evaluation(self, logits: Floats, examples: Sequence[TextExample]) -> Evaluation:
        """Score logits (N, K)."""
        if self.spec.problem_type == "regression":
            predicted = logits[:, 0]
            scores = self._number_scores(self._gold(examples)[:, 0], predicted)
            return Evaluation(scores, number_findings(examples, predicted.tolist()))
        chosen = choose(logits, self.spec)
        scores = self._label_scores(self._gold(examples), chosen)
        if self.spec.problem_type == "multi_label":
            names = [tuple(np.array(self.spec.labels)[row]) for row in chosen.astype(bool)]
            return Evaluation(scores, multi_label_findings(examples, names, self.spec.labels))
        names_chosen = [self.spec.labels[int(index)] for index in chosen]
        confidences = softmax(logits).max(axis=-1).tolist()
        return Evaluation(scores, class_findings(examples, names_chosen, self.spec.labels, confidences))

    def _gold(self, examples: Sequence[TextExample]) -> NDArray[Any]:
        """Return label numbers (N,), flags (N, K) of several labels, or numbers (N, 1)."""
        return np.array([self._target(example.label) for example in examples])

    def _label_scores(self, gold: NDArray[Any], chosen: NDArray[Any]) -> dict[str, float]:
        if self.spec.problem_type == "multi_label":
            return {
                "f1_micro": f1_multi_label(gold, chosen, average="micro"),
                "f1_macro": f1_multi_label(gold, chosen, average="macro"),
                "accuracy": accuracy(gold, chosen),
            }
        scores = {
            "accuracy": accuracy(gold, chosen),
            "f1_macro": f1_macro(gold, chosen),
            "matthews": matthews(gold, chosen),
        }
        if len(self.spec.labels) == 2:
            scores["f1"] = f1_binary(gold, chosen)
        return scores

    def _number_scores(self, gold: NDArray[Any], predicted: NDArray[Any]) -> dict[str, float]:
        return {
            "spearman": spearman(gold, predicted),
            "pearson": pearson(gold, predicted),
            RMSE: _root_mean_square(gold - predicted),
        }

    def baseline(self, examples: Sequence[TextExample]) -> Baseline:
        """Score the most frequent label, the labels with the best micro F1, or the mean."""
        gold, labels = self._gold(examples), self.spec.labels
        if self.spec.problem_type == "regression":
            mean = float(gold.mean())
            scores = {"spearman": 0.0, "pearson": 0.0, RMSE: _root_mean_square(gold - mean)}
            return Baseline(f"always the mean, {mean:.4g}", scores)
        if self.spec.problem_type == "single_label":
            commonest = int(np.bincount(gold, minlength=len(labels)).argmax())
            scores = self._label_scores(gold, np.full_like(gold, commonest))
            return Baseline(f"always {labels[commonest]!r}", scores)
        constant = _best_constant(gold)
        names = ", ".join(repr(label) for label, given in zip(labels, constant, strict=True) if given)
        return Baseline(f"always {names}", self._label_scores(gold, np.broadcast_to(constant, gold.shape)))

    def lengths(self, examples: Sequence[TextExample]) -> Lengths:
        """Count texts, or both of a pair together."""
        limit, unit = self.spec.max_tokens, "pairs" if self.spec.pair else "texts"
        tokens = token_counts(self.tokenizer, [example.text for example in examples])
        if self.spec.pair:
            tokens += token_counts(self.tokenizer, [example.text_pair or "" for example in examples])
        tokens += self.tokenizer.form.special_tokens(2 if self.spec.pair else 1)
        return Lengths(tokens, limit, unit=unit, in_windows=self.windows)


def _two_classes(logits: Tensor) -> Tensor:
    """Return logits (..., 2) of a label and of its absence: a sigmoid is a softmax in which the other one scores 0."""
    return torch.stack([logits, torch.zeros_like(logits)], -1)


def named_weights(labels: Sequence[str], given: Mapping[str, float]) -> tuple[float, ...]:
    """Return the factor of each label, 1 where none is given. Raises ConfigError for an unknown label."""
    if unknown := sorted(set(given) - set(labels)):
        raise ConfigError(f"class_weights names {', '.join(unknown)}; the labels are {', '.join(labels)}")
    return tuple(given.get(label, 1.0) for label in labels)


def balanced(
    labels: Sequence[str], counts: Mapping[str, float], examples: float | None = None
) -> tuple[float, ...]:
    """Return the factor of each label that makes all weigh alike; 1 for a label without examples.

    A label weighs the inverse of its count. With several labels a text, it weighs the ratio of texts without it to texts
    with it; `examples` is then the number of texts.
    """
    weights = []
    for label in labels:
        count = counts.get(label, 0.0)
        whole = (
            count
            if not count
            else sum(counts.values()) / len(labels)
            if examples is None
            else examples - count
        )
        weights.append(whole / count if count and whole else 1.0)
    return tuple(weights)


def _best_constant(gold: NDArray[Any]) -> NDArray[Any]:
    """Return the flags (K,) that, given to all examples (N, K), have the best micro F1: the most frequent labels."""
    counts = gold.sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    right = np.cumsum(counts[order])
    f1 = 2 * right / (counts.sum() + len(gold) * np.arange(1, len(order) + 1))
    constant = np.zeros(gold.shape[1])
    constant[order[: int(f1.argmax()) + 1]] = 1
    return constant


def _root_mean_square(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
