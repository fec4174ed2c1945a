"""Interface between the training loop and a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bert.config import BertConfig
from bert.encoding import Encoding
from bert.nn.heads import BertHead
from bert.nn.losses import Loss
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.engine.device import send
from training.labelled.summary import Lengths
from training.report.error_analysis import Baseline, Findings
from training.settings import FinetuneSettings

Floats = NDArray[np.float32]
Predict = Callable[[Sequence[Encoding]], list[Floats]]
"""Function from encodings to logits, an array each, in order: (K,) for a text's head, (T, K) for a token's."""

COUNTED_AT_ONCE = 10_000
"""Number of texts whose ids are in memory at once while tokens are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """One target with its row of a batch, or with several rows that are compared."""

    encodings: tuple[Encoding, ...]
    target: Any
    soft: Floats | None = None
    """Logits of a teacher, if there is one: (K,), (C,) one a choice, or (T, K)."""
    weight: float = 1.0
    """Factor of its loss."""
    others: tuple[Any, ...] = ()
    """Targets that are as right as the first, as other annotators gave them."""

    def in_epoch(self, epoch: int) -> "Feature":
        """Return the feature with the target of an epoch; epochs take its targets in turn."""
        number = epoch % (1 + len(self.others))
        return replace(self, target=self.others[number - 1]) if number else self

    @property
    def tokens(self) -> int:
        """Tokens of the longest row."""
        return max(len(encoding) for encoding in self.encodings)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBatch:
    """B rows padded to the longest, T tokens; a feature's rows lie one after another."""

    input_ids: Tensor
    segment_ids: Tensor
    attention_mask: Tensor | None
    """(B, T), None where no row is padded."""
    sequence_ids: Tensor
    """(B, T): 0 first text, 1 second, -1 special tokens and padding."""
    targets: list[Any]
    tokens: int
    """Tokens that are not padding."""
    counts: list[int]
    """Rows of each feature."""
    soft: list[Floats]
    """Logits of a teacher, an array a feature; empty without a teacher."""
    weights: Tensor | None = None
    """(F,): factor of each feature's loss; None where all are 1."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores on held-out data, and what a report shows."""

    scores: dict[str, float]
    findings: Findings | None
    """Errors and confusions, for the report."""
    predictions: Any = None
    """Input of `tune` and `rescore`, for a task that tunes something."""


class FinetuneTask(ABC):
    """One task; examples are those of `bert.data.examples`."""

    architecture: str
    """Name of the head in `transformers`."""
    progress = 1.0
    """Share of the run that is over, 0 to 1, in training."""

    def __init__(self, tokenizer: Tokenizer, spec: TaskSpec) -> None:
        """Keep tokenizer and spec for encoding and decoding."""
        self.tokenizer, self.spec = tokenizer, spec

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the scores that may decide which checkpoint is best, the default first.

        A held-out file may lack one, as it may lack a type of entity.
        """

    @property
    def metric(self) -> str:
        """Name of the score that decides by default."""
        return self.metrics[0]

    def prepare(  # noqa: B027 - most tasks have nothing to prepare
        self, examples: Sequence[Any], held_out: Sequence[Any] = ()
    ) -> None:
        """Inspect all training examples and all of dev, before `features` encodes those of each file."""

    def configure(  # noqa: B027
        self, settings: FinetuneSettings, label_counts: Mapping[str, float], examples: float, world: int = 1
    ) -> None:
        """Take over the settings of this task alone. Raises ConfigError.

        An epoch draws `examples` in all and `label_counts` of each label. `world` processes share each batch.
        """

    @abstractmethod
    def model(self, config: BertConfig) -> BertHead:
        """Return BERT with the task's head, weights fresh."""

    @abstractmethod
    def features(self, examples: Sequence[Any]) -> list[Feature]:
        """Encode examples for training."""

    def drawn(self, features: Sequence[Feature], rng: np.random.Generator) -> Sequence[Feature]:
        """Return a step's features with what is drawn anew each time; most tasks draw nothing."""
        return features

    def logits(self, model: nn.Module, batch: FeatureBatch) -> Tensor:
        """Return the model's output for a batch."""
        found: Tensor = model(batch.input_ids, batch.segment_ids, batch.attention_mask)
        return found

    def outputs(self, logits: Floats, encodings: Sequence[Encoding]) -> list[Floats]:
        """Return what `evaluate` reads of each encoding, of the logits of a batch: (K,), or (T, K) of a token's head."""
        rows = zip(logits, encodings, strict=True)
        return [row[: len(encoding)] if logits.ndim == 3 else row for row, encoding in rows]

    @property
    def compares_whole_batches(self) -> bool:
        """Tell whether the loss compares the texts of all parts of a batch, in all processes."""
        return False

    @abstractmethod
    def loss(self, logits: Tensor, batch: FeatureBatch) -> Loss:
        """Compare the model's logits with the batch's targets."""

    def has_loss_on(self, examples: Sequence[Any]) -> bool:
        """Tell whether `loss` can be computed of held-out examples, which may state other things than those of training."""
        return True

    def soft_loss(self, logits: Tensor, batch: FeatureBatch, temperature: float) -> Loss:
        """Compare the model's logits with a teacher's, over as many targets as `loss` has; not for embeddings."""
        raise NotImplementedError(self.spec.task)

    def disagreement(self, logits: Tensor, again: Tensor, batch: FeatureBatch) -> Tensor:
        """Return how far two readings' distributions are apart, summed over as many targets as `loss` has.

        Only tasks that `r_drop` is for have it.
        """
        raise NotImplementedError(self.spec.task)

    @abstractmethod
    def evaluate(self, predict: Predict, examples: Sequence[Any]) -> Evaluation:
        """Score held-out examples with the task's own metric."""

    @abstractmethod
    def baseline(self, examples: Sequence[Any]) -> Baseline:
        """Score the best prediction that is the same for all of these examples."""

    @abstractmethod
    def lengths(self, examples: Sequence[Any]) -> Lengths:
        """Return the lengths of the inputs before anything is cut."""

    def tune(self, found: Sequence[Evaluation]) -> dict[str, Any]:
        """Return fields of the TaskSpec, chosen on all held-out files together; most tasks have none."""
        return {}

    def rescore(self, found: Evaluation) -> Evaluation:
        """Score predictions again by the present spec."""
        return found


def collate(features: Sequence[Feature], pad_id: int, device: torch.device) -> FeatureBatch:
    """Pad features to the longest of them."""
    rows = [encoding for feature in features for encoding in feature.encodings]
    lengths = [len(row) for row in rows]
    shape = (len(rows), max(lengths))
    ids, segments = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    sequences = np.full(shape, -1, np.int64)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        ids[index, :length] = row.ids
        segments[index, :length] = row.segment_ids
        sequences[index, :length] = row.sequence_ids
    mask = None
    if min(lengths) < shape[1]:
        mask = send(torch.from_numpy(np.arange(shape[1])[None] < np.array(lengths)[:, None]), device)
    return FeatureBatch(
        send(torch.from_numpy(ids), device),
        send(torch.from_numpy(segments), device),
        mask,
        send(torch.from_numpy(sequences), device),
        [feature.target for feature in features],
        sum(lengths),
        [len(feature.encodings) for feature in features],
        [feature.soft for feature in features if feature.soft is not None],
        _weights(features, device),
    )


def _weights(features: Sequence[Feature], device: torch.device) -> Tensor | None:
    if all(feature.weight == 1.0 for feature in features):
        return None
    return send(torch.tensor([feature.weight for feature in features]), device)


def token_counts(tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of pieces of each text, without special tokens: (N,)."""
    counts = [
        [len(ids) for ids in tokenizer.ids(texts[start : start + COUNTED_AT_ONCE])]
        for start in range(0, len(texts), COUNTED_AT_ONCE)
    ]
    return np.array([count for part in counts for count in part], np.int64)


def padded(rows: Sequence[NDArray[Any]], tokens: int, fill: int = 0) -> Tensor:
    """Return targets or a teacher's logits of a token's head, (T,) or (T, K) each, as (B, T) or (B, T, K)."""
    out = np.full((len(rows), tokens, *rows[0].shape[1:]), fill, rows[0].dtype)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return torch.from_numpy(out)
