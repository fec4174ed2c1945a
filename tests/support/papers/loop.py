"""A plain training loop around transformers' modules, which the pretraining recipes are compared with."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.papers.inputs import padded
from tests.support.papers.models import (
    LeftToRight,
    MaskedWords,
    MaskedWordsAndPairs,
    Reference,
    SpanBoundary,
)
from tests.support.papers.optimizers import (
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
from tests.support.papers.relatives import (
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
            loss.backward()
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
