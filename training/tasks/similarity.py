"""Fine-tuning for similarity: the cosine of two texts learns a score (Reimers & Gurevych 2019, arXiv 1908.10084)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bert.config import BertConfig
from bert.data.examples import TextExample
from bert.encoding import Encoding
from bert.errors import ConfigError
from bert.metrics.correlation import pearson, spearman
from bert.nn import losses
from bert.nn.heads import BertForSimilarity, BertHead
from bert.nn.losses import Loss
from bert.tasks.similarity import cosine
from training.core.sending import send
from training.data.summary import Lengths
from training.report.error_analysis import Baseline, number_findings
from training.tasks.base import Evaluation, Feature, FeatureBatch, FinetuneTask, Predict, token_counts


class SimilarityFinetuning(FinetuneTask):
    """Two separately encoded texts and their similarity."""

    architecture = "BertModel"
    metrics = ("spearman", "pearson")

    highest: float = 1.0
    """Highest score of the training data, which a cosine of 1 stands for."""

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with the pooling of the base."""
        return BertForSimilarity(config, self.spec.poolings)

    def _pairs(self, examples: Sequence[TextExample]) -> list[tuple[Encoding, Encoding]]:
        if any(example.text_pair is None for example in examples):
            raise ConfigError("similarity needs two texts an example: name the column of `text_pair`")
        pieces = self.tokenizer.pieces([text for x in examples for text in (x.text, x.text_pair or "")])
        rows = [self.tokenizer.single(p, self.spec.max_tokens, truncate=True) for p in pieces]
        return list(zip(rows[::2], rows[1::2], strict=True))

    def prepare(self, examples: Sequence[TextExample]) -> None:
        """Find the scale of the scores, the same for all files. Raises ConfigError where none is above 0."""
        if examples:
            self.highest = max(float(example.label) for example in examples)  # type: ignore[arg-type]
        if self.highest <= 0:
            raise ConfigError(
                f"the highest similarity of the training data is {self.highest:g}; it must be above 0, "
                "because the cosine of 1 stands for it"
            )

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        """Two rows an example; scores are scaled so that the highest of the training data is 1."""
        return [
            Feature(pair, float(example.label) / self.highest)  # type: ignore[arg-type]
            for pair, example in zip(self._pairs(examples), examples, strict=True)
        ]

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare the cosine of each two rows, unit vectors (2B, H), with the score."""
        cosines = (logits[::2] * logits[1::2]).sum(-1)
        return losses.regression(cosines, send(torch.tensor(batch.targets), logits.device))

    def evaluate(self, predict: Predict, examples: Sequence[TextExample]) -> Evaluation:
        """Correlate cosines with scores."""
        vectors = np.stack(predict([row for pair in self._pairs(examples) for row in pair]))
        predicted = cosine(vectors[::2], vectors[1::2])
        gold = [float(example.label) for example in examples]  # type: ignore[arg-type]
        scores = {
            "spearman": spearman(gold, predicted),
            "pearson": pearson(gold, predicted),
        }
        return Evaluation(scores, number_findings(examples, predicted.tolist()))

    def baseline(self, examples: Sequence[TextExample]) -> Baseline:
        """Score one prediction for all pairs, which correlates with nothing."""
        return Baseline("one score for all", {"spearman": 0.0, "pearson": 0.0})

    def lengths(self, examples: Sequence[TextExample]) -> Lengths:
        """Count both texts of each pair."""
        texts = [text for example in examples for text in (example.text, example.text_pair or "")]
        return Lengths(
            token_counts(self.tokenizer, texts) + self.tokenizer.form.special_tokens(1), self.spec.max_tokens
        )
