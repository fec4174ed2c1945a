"""Fine-tuning of sparse vectors: a weight for each piece of the vocabulary (SPLADE; Formal et al. 2021, arXiv 2109.10086).

They are learned from texts that belong together and texts that do not, as embeddings are, and kept sparse by the FLOPS
regulariser, an estimate of the products that an index computes. R rows, V vocabulary.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bert.config import BertConfig
from bert.data.examples import TextExample
from bert.encoding import Encoding
from bert.errors import ConfigError
from bert.nn import losses
from bert.nn.heads import BertForSparse, BertHead
from bert.nn.losses import Loss
from training.settings import FinetuneSettings
from training.tasks.base import Evaluation, FeatureBatch, Floats, Predict
from training.tasks.similarity import SimilarityFinetuning

_WARM_UP = 1 / 3
"""Share of the run in which the FLOPS regulariser rises to its full weight, quadratically (arXiv 2109.10086, section 4)."""


class SparseFinetuning(SimilarityFinetuning):
    """Separately encoded texts, and the dot products of their weights."""

    architecture = "BertForMaskedLM"
    _usual_scale = 1.0
    _likeness = "dot"

    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with the masked language model's head."""
        return BertForSparse(config, self.spec.sparse_activation)

    def configure(
        self, settings: FinetuneSettings, label_counts: Mapping[str, float], examples: float, world: int = 1
    ) -> None:
        """Take over how vectors are learned. Raises ConfigError for what only embeddings have."""
        super().configure(settings, label_counts, examples, world)
        given = self.settings
        if given.loss not in ("auto", "mnrl"):
            raise ConfigError(f"embeddings.loss is {given.loss!r}, and sparse vectors are learned by mnrl")
        if given.dimensions:
            raise ConfigError("embeddings.dimensions are for dense vectors: a sparse one is cut by top_k")

    def prepare(self, examples: Sequence[TextExample], held_out: Sequence[TextExample] = ()) -> None:
        """Choose the deciding metric. Raises ConfigError for training data with scores."""
        super().prepare(examples, held_out)
        if examples and self.loss_name != "mnrl":
            raise ConfigError(
                "sparse vectors are learned from texts that belong together, and the data have scores"
            )

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare weights (R, V), and add the FLOPS regulariser of anchors and of the other texts."""
        found = self._loss(logits, batch)
        first = np.cumsum(batch.counts) - np.array(batch.counts)
        is_anchor = torch.zeros(len(logits), dtype=torch.bool)
        is_anchor[torch.from_numpy(first)] = True
        is_anchor = is_anchor.to(logits.device)
        # Held-out losses are compared over the run, so they have the full regulariser.
        share = min(1.0, self.progress / _WARM_UP) ** 2 if logits.requires_grad else 1.0
        regulariser = self.settings.query_flops * losses.flops(logits[is_anchor])
        regulariser = regulariser + self.settings.document_flops * losses.flops(logits[~is_anchor])
        return Loss(found.total + share * found.targets * regulariser, found.targets)

    def evaluate(self, predict: Predict, examples: Sequence[TextExample]) -> Evaluation:
        """Search each pair's second text by the dot product; count the weights above 0 of a text, on average."""
        counts: list[int] = []

        def counted(rows: Sequence[Encoding]) -> list[Floats]:
            vectors = predict(rows)
            counts.extend(int(np.count_nonzero(each)) for each in vectors)
            return vectors

        found = super().evaluate(counted, examples)
        return Evaluation({**found.scores, "active_dims": float(np.mean(counts))}, found.findings)
