"""A plain training loop around transformers' modules: the other side of the comparison."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.training.curves.inputs import Inputs, padded
from benchmarks.training.curves.models import (
    LeftToRight,
    MaskedWords,
    MaskedWordsAndPairs,
    Reference,
    SpanBoundary,
    masked_loss,
)
from benchmarks.training.curves.optimizers import (
    Adam,
    Lamb,
    Schedule,
    StableAdam,
    Update,
    decays,
    linear_from_peak,
    linear_from_start,
    trapezoid,
)
from benchmarks.training.curves.relatives import (
    AlbertWordsAndOrder,
    Deberta,
    Distilled,
    Electra,
    ModernWords,
    RobertaWords,
)
from training.pretraining.examples.base import MaskedExample


@dataclass(frozen=True)
class Paper:
    """A recipe as its paper and published code have it."""

    model: type[Reference]
    optimizer: Update
    schedule: Schedule = linear_from_start
    weight_decay: float = 0.01
    max_norm: float = 1.0
    """Clip of the gradients' norm; 0 does not clip."""
    decays_all: bool = False
    """True where biases and LayerNorm decay too."""


@dataclass(frozen=True)
class Run:
    """Numbers that both sides are given."""

    steps: int
    rate: float
    """Peak learning rate."""
    warmup: int
    """Steps of the warm-up."""
    pad_id: int
    weight_decay: float | None = None
    """Decay instead of the paper's."""


_GOOGLE = Adam(0.9, 0.999, 1e-6, corrected=False)
_SMALL_EPSILON = Adam(0.9, 0.999, 1e-8)
PAPERS = {
    "bert": Paper(MaskedWordsAndPairs, _GOOGLE),
    "no_nsp": Paper(MaskedWords, _GOOGLE),
    "left_to_right": Paper(LeftToRight, _GOOGLE),
    "whole_word": Paper(MaskedWordsAndPairs, _GOOGLE),
    "ernie": Paper(MaskedWordsAndPairs, _SMALL_EPSILON),
    "spanbert": Paper(SpanBoundary, _SMALL_EPSILON, weight_decay=0.1, decays_all=True),
    "macbert": Paper(MaskedWordsAndPairs, _GOOGLE),
    "roberta": Paper(RobertaWords, Adam(0.9, 0.98, 1e-6), linear_from_peak, max_norm=0.0, decays_all=True),
    "albert": Paper(AlbertWordsAndOrder, Lamb(0.9, 0.999, 1e-6, corrected=False)),
    "electra": Paper(Electra, _GOOGLE),
    "distilbert": Paper(Distilled, Adam(0.9, 0.98, 1e-6), linear_from_peak, 0.0, max_norm=5.0),
    "modernbert": Paper(ModernWords, StableAdam(0.9, 0.98, 1e-6), trapezoid, 0.0125, max_norm=0.0),
    "deberta_v3": Paper(Deberta, Adam(0.9, 0.98, 1e-6, corrected=False)),
}


@dataclass
class TheirLoop:
    """Steps of a run over batches of examples."""

    paper: Paper
    run: Run
    reference: Reference
    _state: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def start(cls, recipe: str, run: Run, folder: Path) -> "TheirLoop":
        """Load the weights of a folder."""
        paper = PAPERS[recipe]
        return cls(paper, run, paper.model(folder).train())

    def steps(self, batches: Iterable[Sequence[MaskedExample]]) -> Iterator[float]:
        """Train on each batch; yield its loss before the update."""
        decayed = decays(self.reference)
        for step, examples in zip(range(self.run.steps), batches, strict=False):
            loss = self.reference.loss(padded(examples, self.run.pad_id))
            loss.backward()  # type: ignore[no-untyped-call]
            if self.paper.max_norm:
                for parameters in self.reference.clipped_together():
                    nn.utils.clip_grad_norm_(parameters, self.paper.max_norm)
            self._update(self.run.rate * self.paper.schedule(step, self.run.warmup, self.run.steps), decayed)
            yield float(loss.detach())

    @torch.no_grad()
    def _update(self, rate: float, decayed: dict[str, bool]) -> None:
        everywhere = self.paper.weight_decay if self.run.weight_decay is None else self.run.weight_decay
        for name, weight in self.reference.named_parameters():
            if weight.grad is not None:
                decay = everywhere if decayed[name] or self.paper.decays_all else 0.0
                self.paper.optimizer(weight, weight.grad, self._state.setdefault(name, {}), rate, decay)
                weight.grad = None

    @torch.no_grad()
    def held_out_loss(self, examples: Sequence[MaskedExample], size: int = 64) -> float | None:
        """Return the mean loss of masked words, without dropout; None without a head for them."""
        self.reference.eval()
        total, count = 0.0, 0
        for start in range(0, len(examples), size):
            batch: Inputs = padded(examples[start : start + size], self.run.pad_id)
            logits = self.reference.scores(batch)
            if logits is None:
                break
            loss, positions = masked_loss(logits, batch.labels)
            total, count = total + loss, count + positions
        self.reference.train()
        return total / count if count else None
