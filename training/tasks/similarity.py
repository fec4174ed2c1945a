"""Fine-tuning for similarity: the cosine of two texts (Reimers & Gurevych 2019, arXiv 1908.10084).

It learns from scores, or from texts that belong together and texts that do not. F features, R rows, E width.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bert.config import BertConfig
from bert.data.examples import TextExample
from bert.encoding import Encoding
from bert.errors import ConfigError
from bert.metrics.correlation import pearson, spearman
from bert.nn import losses
from bert.nn.heads import BertForSimilarity, BertHead
from bert.nn.losses import Loss
from bert.tasks.vectors.similarity import likeness
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import Baseline, number_findings
from training.settings import EmbeddingSettings, FinetuneSettings
from training.tasks.base import Evaluation, Feature, FeatureBatch, FinetuneTask, Predict, token_counts
from training.tasks.positive_pairs import false_negatives, random_order, score_pairs, texts_of

SCORED = ("cosine", "cosent")
"""Losses that learn from pairs with scores; the others from pairs without."""
_READ_BY = {
    **dict.fromkeys(("scale", "whole_batch"), ("cosent", "mnrl")), "symmetric": ("mnrl",), "margin": ("triplet",),
    **dict.fromkeys(("query_flops", "document_flops"), ("sparse",)),
}  # fmt: skip
"""Settings → the losses, or the task, that read them."""


class SimilarityFinetuning(FinetuneTask):
    """Separately encoded texts, and how near they should be to each other."""

    architecture = "BertModel"
    metrics = ("spearman", "pearson", "triplet_accuracy", "recall_at_1", "mrr")

    settings = EmbeddingSettings()
    loss_name = "cosine"
    """The loss of the settings, or the one that the training data ask for."""
    highest: float = 1.0
    """Highest score of the training data, which a cosine of 1 stands for."""
    _metric = "spearman"
    _usual_scale = 20.0
    """Factor of the scores that the loss compares."""
    _likeness = "cosine"
    """Comparison of two vectors."""
    _compared: int | None = None
    """Fewest pairs of a batch that a process computes at once; None is unknown."""
    _cut = ""
    """The settings that `_compared` comes from, for people."""

    @property
    def metric(self) -> str:
        """Spearman where there are scores to compare with, else the accuracy on triplets, else recall."""
        return self._metric

    @property
    def compares_whole_batches(self) -> bool:
        """As the settings say."""
        return self.settings.whole_batch

    @property
    def _scale(self) -> float:
        return self._usual_scale if self.settings.scale is None else self.settings.scale

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with the pooling of the base. Raises ConfigError for dimensions that it does not have."""
        width = self.spec.vector_size(config.hidden_size)
        if any(size > width for size in self.settings.dimensions):
            raise ConfigError(
                f"embeddings.dimensions are {self.settings.dimensions}, and the base has {width}"
            )
        return BertForSimilarity(config, self.spec.poolings)

    def configure(
        self, settings: FinetuneSettings, label_counts: Mapping[str, float], examples: float, world: int = 1
    ) -> None:
        """Take over how embeddings are learned."""
        self.settings = settings.embeddings
        # The process with the fewest pairs of a batch has this many of them.
        pairs, parts = min(settings.batch_size, int(examples)), settings.accumulation_steps
        self._compared = pairs if self.compares_whole_batches else math.ceil(pairs // world / parts)
        self._cut = (
            f"batch_size {settings.batch_size} ({examples:,.0f} pairs an epoch), {world} process{'es' * (world > 1)} "
            f"and accumulation_steps {parts}"
        )

    def prepare(self, examples: Sequence[TextExample], held_out: Sequence[TextExample] = ()) -> None:
        """Choose the loss, the scale of the scores, the same for all files, and the deciding metric.

        Raises ConfigError for data that the loss cannot learn from.
        """
        self._metric = _default_metric(held_out or examples)
        if not examples:
            return
        self.loss_name = _loss_for(self.settings.loss, examples)
        self._check_settings(examples)
        if self.loss_name == "cosine":
            self.highest = max(float(example.label) for example in examples)  # type: ignore[arg-type]
        if self.highest <= 0:
            raise ConfigError(
                f"the highest similarity of the training data is {self.highest:g}; it must be above 0, "
                "because the cosine of 1 stands for it"
            )

    def _check_settings(self, examples: Sequence[TextExample]) -> None:
        """Raise ConfigError for a setting that the loss does not read, and for a batch in which it compares nothing."""
        for name, readers in _READ_BY.items():
            given, usual = getattr(self.settings, name), getattr(EmbeddingSettings(), name)
            if given != usual and not {self.loss_name, self.spec.task}.intersection(readers):
                raise ConfigError(
                    f"embeddings.{name} ({given}) is read by {' and '.join(readers)}, and the loss is {self.loss_name!r} "
                    f"of {self.spec.task}"
                )
        compares = self.loss_name == "cosent" or (
            self.loss_name == "mnrl" and not any(example.negatives for example in examples)
        )
        if compares and self._compared is not None and self._compared < 2:
            raise ConfigError(
                f"the loss {self.loss_name!r} compares the pairs that one process computes at once, which must be at least "
                f"2: {self._cut} leave it {self._compared}. Raise batch_size, or lower the others"
            )

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        """Make a row of each text of an example; the target is a score, or the keys by which equal texts are told."""
        return [
            Feature(rows, _keys(rows) if example.label is None else float(example.label) / self.highest)  # type: ignore[arg-type]
            for rows, example in zip(self._rows(examples), examples, strict=True)
        ]

    def _rows(self, examples: Sequence[TextExample]) -> list[tuple[Encoding, ...]]:
        if any(example.text_pair is None for example in examples):
            raise ConfigError("similarity needs two texts an example: name the column of `text_pair`")
        texts = [texts_of(example) for example in examples]
        encoded = iter(self._encode([text for row in texts for text in row]))
        return [tuple(next(encoded) for _ in row) for row in texts]

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        limit = self.spec.max_tokens
        return [self.tokenizer.single(p, limit, truncate=True) for p in self.tokenizer.pieces(list(texts))]

    def has_loss_on(self, examples: Sequence[TextExample]) -> bool:
        """Tell whether the examples have the scores, or the negatives, that the loss compares with."""
        if self.loss_name in SCORED:
            return all(example.label is not None for example in examples)
        return all(e.label is None and (e.negatives or self.loss_name == "mnrl") for e in examples)

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare unit vectors (R, E), whole or also cut to fewer dimensions, whose losses are then averaged."""
        sizes = [logits.shape[1], *self.settings.dimensions]
        cut = [logits if size == logits.shape[1] else F.normalize(logits[:, :size], dim=-1) for size in sizes]
        found = [self._loss(vectors, batch) for vectors in cut]
        return Loss(torch.stack([loss.total for loss in found]).mean(), found[0].targets)

    def _loss(self, vectors: Tensor, batch: FeatureBatch) -> Loss:
        if self.loss_name not in SCORED:
            return self._pairs_loss(vectors, batch)
        scores = send(torch.tensor(batch.targets), vectors.device)
        cosines = (vectors[::2] * vectors[1::2]).sum(-1)
        if self.loss_name == "cosent":
            return losses.cosent(cosines, scores, self._scale)
        return losses.regression(cosines, scores)

    def _pairs_loss(self, vectors: Tensor, batch: FeatureBatch) -> Loss:
        """Compare anchors, positives and negatives (R, E); the other pairs' texts are negatives of `mnrl`."""
        counts, device = np.array(batch.counts), vectors.device
        first = np.cumsum(counts) - counts
        others = np.setdiff1d(np.arange(counts.sum()), [first, first + 1])
        anchors, positives, negatives = (
            vectors[send(torch.from_numpy(rows), device)] for rows in (first, first + 1, others)
        )
        if self.loss_name == "triplet":
            owner = send(torch.from_numpy(np.repeat(np.arange(len(counts)), counts - 2)), device)
            return losses.triplet(anchors[owner], positives[owner], negatives, self.settings.margin)
        keys = np.concatenate(batch.targets)
        first_keys, positive_keys = keys[first], keys[first + 1]
        wrong = false_negatives(first_keys, positive_keys, np.concatenate([positive_keys, keys[others]]))
        candidates = torch.cat([positives, negatives])
        scale = self._scale
        loss = losses.ranking(anchors, candidates, send(torch.from_numpy(wrong), device), scale)
        if not self.settings.symmetric:
            return loss
        wrong = false_negatives(positive_keys, first_keys, first_keys)
        back = losses.ranking(positives, anchors, send(torch.from_numpy(wrong), device), scale)
        return Loss((loss.total + back.total) / 2, loss.targets)

    def evaluate(self, predict: Predict, examples: Sequence[TextExample]) -> Evaluation:
        """Correlate cosines with scores, or search each pair's second text."""
        texts = list(dict.fromkeys(text for example in examples for text in texts_of(example)))
        vectors = dict(zip(texts, predict(self._encode(texts)), strict=True))
        if not _has_scores(examples):
            return score_pairs(vectors, examples)
        first, second = (np.stack([vectors[texts_of(e)[n]] for e in examples]) for n in (0, 1))
        predicted = likeness(first, second, self._likeness)
        gold = [float(example.label) for example in examples]  # type: ignore[arg-type]
        scores = {
            "spearman": spearman(gold, predicted),
            "pearson": pearson(gold, predicted),
        }
        return Evaluation(scores, number_findings(examples, predicted.tolist()))

    def baseline(self, examples: Sequence[TextExample]) -> Baseline:
        """Score one prediction for all pairs, which correlates with nothing."""
        if not _has_scores(examples):
            return random_order(examples)
        return Baseline("one score for all", {"spearman": 0.0, "pearson": 0.0})

    def lengths(self, examples: Sequence[TextExample]) -> Lengths:
        """Count every text of each example."""
        texts = [text for example in examples for text in texts_of(example)]
        return Lengths(
            token_counts(self.tokenizer, texts) + self.tokenizer.form.special_tokens(1), self.spec.max_tokens
        )


def _keys(rows: Sequence[Encoding]) -> tuple[int, ...]:
    """Return a number for each text, the same for texts that the model reads alike."""
    return tuple(hash(tuple(row.ids)) for row in rows)


def _has_scores(examples: Sequence[TextExample]) -> bool:
    return any(example.label is not None for example in examples)


def _default_metric(examples: Sequence[TextExample]) -> str:
    if not examples or _has_scores(examples):
        return "spearman"
    return "triplet_accuracy" if any(example.negatives for example in examples) else "recall_at_1"


def _loss_for(name: str, examples: Sequence[TextExample]) -> str:
    """Return the loss, for `auto` the one that the data ask for. Raises ConfigError where they do not fit together."""
    scored = sum(example.label is not None for example in examples)
    if 0 < scored < len(examples):
        raise ConfigError(
            f"{scored:,} pairs of the training data have scores and {len(examples) - scored:,} have none: "
            "one run learns from one of the two kinds"
        )
    if name == "auto":
        return "cosine" if scored else "mnrl"
    if (name in SCORED) != bool(scored):
        have, fitting = ("scores", "cosine or cosent") if scored else ("no scores", "mnrl or triplet")
        raise ConfigError(f"embeddings.loss is {name!r}, and the training data have {have}: take {fitting}")
    lacking = [example.id for example in examples if not example.negatives]
    if name == "triplet" and lacking:
        raise ConfigError(
            f"embeddings.loss 'triplet' needs a negative for each pair, and {len(lacking):,} of {len(examples):,} "
            f"have none, the first of them {lacking[0]}"
        )
    return name
