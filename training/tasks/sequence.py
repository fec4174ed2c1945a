"""Fine-tuning for classification of a text or a pair: one label, any number of labels, or a number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert import metrics
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.nn import losses
from bert.nn.heads import BertForSequenceClassification, BertHead
from bert.nn.losses import Loss
from bert.tasks.activations import softmax
from bert.tasks.classification import predict as choose
from training.data.examples import TextExample
from training.findings import class_findings, multi_label_findings, number_findings
from training.tasks.base import Batch, Evaluation, Feature, FinetuneTask, Floats, Predict


class SequenceTask(FinetuneTask):
    """Labels from the pooled [CLS]."""

    architecture = "BertForSequenceClassification"
    head_modules = ("classifier", "pooler")

    @property
    def metric(self) -> str:
        """What decides which checkpoint is best."""
        return {"single_label": "accuracy", "multi_label": "f1_micro"}.get(self.spec.problem, "spearman")

    @property
    def metrics(self) -> tuple[str, ...]:
        """What may decide instead."""
        if self.spec.problem == "single_label":
            return ("accuracy", "f1_macro", "matthews", *(("f1",) if len(self.spec.labels) == 2 else ()))
        several = self.spec.problem == "multi_label"
        return ("f1_micro", "f1_macro", "accuracy") if several else ("spearman", "pearson")

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with one output a label."""
        return BertForSequenceClassification(config, len(self.spec.labels))

    def encode(self, examples: Sequence[TextExample]) -> list[Encoding]:
        """Encode texts or pairs; what is too long loses its end."""
        firsts = self.tokenizer.pieces([example.text for example in examples])
        if not self.spec.pair:
            return [self.tokenizer.single(first, self.spec.max_tokens, truncate=True) for first in firsts]
        seconds = self.tokenizer.pieces([example.text_pair or "" for example in examples])
        return [
            self.tokenizer.pair(first, second, self.spec.max_tokens, truncate=True)
            for first, second in zip(firsts, seconds, strict=True)
        ]

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        """One feature an example."""
        encodings = self.encode(examples)
        return [Feature((e,), self._target(x.label)) for e, x in zip(encodings, examples, strict=True)]

    def _target(self, label: Any) -> Any:
        if self.spec.problem == "single_label":
            return self.spec.labels.index(label)
        if self.spec.problem == "multi_label":
            return [float(name in label) for name in self.spec.labels]
        return [float(label)]

    def loss(self, logits: Tensor, batch: Batch) -> Loss:
        """Cross entropy, binary cross entropy for each label, or squared error."""
        targets = torch.tensor(batch.targets, device=logits.device)
        if self.spec.problem == "single_label":
            return losses.cross_entropy(logits, targets)
        if self.spec.problem == "multi_label":
            return losses.multi_label(logits, targets)
        return losses.regression(logits, targets)

    def soft_loss(self, logits: Tensor, batch: Batch, temperature: float) -> Loss:
        """The teacher's classes; of several labels each for itself; a number as it is."""
        teacher = torch.from_numpy(np.stack(batch.soft)).to(logits.device)
        if self.spec.problem == "single_label":
            return losses.soft_targets(logits, teacher, temperature)
        if self.spec.problem == "multi_label":
            # A sigmoid is the softmax of two classes, of which the other one scores 0.
            ours, theirs = (torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, teacher))
            return losses.soft_targets(ours, theirs, temperature)
        return losses.regression(logits, teacher)

    def evaluate(self, predict: Predict, examples: Sequence[TextExample]) -> Evaluation:
        """Accuracy and F1, or correlations for numbers."""
        logits = np.stack(predict(self.encode(examples)))  # (N, K)
        if self.spec.problem == "regression":
            return self._numbers(logits[:, 0], examples)
        chosen = choose(logits, self.spec)
        gold = np.array([self._target(example.label) for example in examples])
        if self.spec.problem == "multi_label":
            names = [tuple(np.array(self.spec.labels)[row]) for row in chosen.astype(bool)]
            scores = {
                "f1_micro": metrics.f1_multi_label(gold, chosen, average="micro"),
                "f1_macro": metrics.f1_multi_label(gold, chosen, average="macro"),
                "accuracy": metrics.accuracy(gold, chosen),
            }
            return Evaluation(scores, multi_label_findings(examples, names, self.spec.labels))
        scores = {
            "accuracy": metrics.accuracy(gold, chosen),
            "f1_macro": metrics.f1_macro(gold, chosen),
            "matthews": metrics.matthews(gold, chosen),
        }
        if len(self.spec.labels) == 2:
            scores["f1"] = metrics.f1_binary(gold, chosen)
        names_chosen = [self.spec.labels[int(index)] for index in chosen]
        confidences = softmax(logits).max(axis=-1).tolist()
        return Evaluation(scores, class_findings(examples, names_chosen, self.spec.labels, confidences))

    def _numbers(self, predicted: Floats, examples: Sequence[TextExample]) -> Evaluation:
        gold = [float(example.label) for example in examples]  # type: ignore[arg-type]
        scores = {
            "spearman": metrics.spearman(gold, predicted),
            "pearson": metrics.pearson(gold, predicted),
        }
        return Evaluation(scores, number_findings(examples, predicted.tolist()))
