"""DistilBERT: a small model learns a large one's distributions over the vocabulary.

R rows of T tokens, P positions, H width, E width of what a decoder reads, V vocabulary.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from bert.bodies.body import SEGMENTS
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForMaskedLM
from training.pretraining.objectives.base import encode, select
from training.pretraining.objectives.language_models import MaskedLanguageModel
from training.pretraining.pretrain_batch import PretrainBatch
from training.pretraining.settings import DistillationSettings

LAYER = "bert.encoder.layer."
SLICE_LOGITS = 1 << 24
"""Logits to compute at once; about six times as many numbers are in memory."""


class Distillation(MaskedLanguageModel):
    """Learn a teacher's distribution over the vocabulary, the words themselves, and the direction of hidden states.

    Sanh et al. 2019 (arXiv 1910.01108), section 3; what the paper leaves open is as in its published code
    (huggingface/transformers, research_projects/distillation). The distributions are compared at all real tokens, or at
    the masked ones.
    """

    def __init__(self, config: BertConfig, teacher: BertForMaskedLM, settings: DistillationSettings) -> None:
        """Make the student with fresh weights; raises ConfigError for a teacher that does not fit it."""
        super().__init__(config)
        if settings.cosine_weight and config.hidden_size != teacher.config.hidden_size:
            raise ConfigError(
                f"hidden states {config.hidden_size} and {teacher.config.hidden_size} wide have no cosine: "
                "set cosine_weight to 0"
            )
        _check_same(config, teacher.config, "vocab_size")
        for name in ("max_position_embeddings", *(("type_vocab_size",) if config.has_segments else ())):
            if getattr(config, name) > getattr(teacher.config, name):
                _check_same(config, teacher.config, name)
        self.frozen: tuple[BertForMaskedLM] = (teacher.requires_grad_(False).eval(),)
        self.temperature = settings.temperature
        self.predicts_all = settings.soft_over == "all" and settings.soft_weight > 0
        weights = {
            "soft_mlm": settings.soft_weight, "mlm": settings.hard_weight, "cosine": settings.cosine_weight,
        }  # fmt: skip
        self.weights = {name: weight for name, weight in weights.items() if weight}

    @property
    def teacher(self) -> BertForMaskedLM:
        """The large model, frozen and without dropout."""
        return self.frozen[0]

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of tokens and of masked positions."""
        over_tokens = ("cosine", "soft_mlm") if self.predicts_all else ("cosine",)
        return {name: batch.tokens if name in over_tokens else len(batch.labels) for name in self.weights}

    def totals(self, batch: PretrainBatch) -> dict[str, Tensor]:
        """Return those of `soft_mlm`, `mlm` (over masked positions) and `cosine` (over tokens) that have a weight."""
        hidden = encode(self.model, batch)
        with torch.no_grad():
            theirs = encode(self.teacher.to(hidden.device), batch)
        every = {
            "soft_mlm": lambda: self._soft(hidden, theirs, batch),
            "mlm": lambda: self.word_loss(select(hidden, batch.masked), batch.labels),
            "cosine": lambda: _cosine(hidden, theirs, batch),
        }
        return {name: every[name]() for name in self.weights}

    def _soft(self, hidden: Tensor, theirs: Tensor, batch: PretrainBatch) -> Tensor:
        """Compare the distributions over the vocabulary, from hidden states (R, T, H) of both models."""
        positions = real_positions(batch) if self.predicts_all else batch.masked
        with torch.no_grad():
            wanted = Decoded.of(self.teacher, select(theirs, positions))
        return soft_targets(Decoded.of(self.model, select(hidden, positions)), wanted, self.temperature)

    def start_from_teacher(self) -> None:
        """Copy the teacher's embeddings, head, and layers spread evenly from its first to its last.

        DistilBERT's six are 0, 2, 4, 7, 9 and 11. A student without segments leaves out the teacher's, as its published
        code does. Raises ConfigError unless all else of the two models is alike.
        """
        ours, theirs, copied = self.model.config, self.teacher.config, self.teacher.state_dict()
        if ours.shares_layers:
            raise ConfigError("a student whose layers share their weights cannot start from its teacher's")
        for at, taken in enumerate(spread(len(ours.layer_order), len(theirs.layer_order))):
            layer, own = f"{LAYER}{theirs.layer_order[taken]}.", f"{LAYER}{at}."
            taken_over = {n: w for n, w in self.teacher.state_dict().items() if n.startswith(layer)}
            copied |= {own + name.removeprefix(layer): weight for name, weight in taken_over.items()}
        wanted = self.model.state_dict()
        if SEGMENTS in wanted and not ours.has_segments:
            copied[SEGMENTS] = wanted[SEGMENTS]
        for name, weight in wanted.items():
            shape = tuple(copied[name].shape) if name in copied else "no such tensor"
            if shape != tuple(weight.shape):
                raise ConfigError(
                    f"the student cannot start from its teacher: {name} is {tuple(weight.shape)} here and {shape} there"
                )
        self.model.load_state_dict({name: copied[name] for name in wanted})


def real_positions(batch: PretrainBatch) -> Tensor:
    """Return flat indices of the real tokens, ascending."""
    # Their number is known on the host: asking a GPU would stall it.
    return torch.argsort((~batch.real).flatten().byte(), stable=True)[: batch.tokens]


def spread(layers: int, of: int) -> list[int]:
    """Return the indices of the layers to keep: the first, the last, and others at even distances between."""
    return [round(i * (of - 1) / max(1, layers - 1)) for i in range(layers)]


def _cosine(hidden: Tensor, theirs: Tensor, batch: PretrainBatch) -> Tensor:
    """Compare the directions of hidden states (R, T, H): 1 - cosine, over real tokens."""
    away = 1 - F.cosine_similarity(hidden.float(), theirs.float(), dim=-1)  # (R, T)
    return (away * batch.real).sum()


def _check_same(student: BertConfig, teacher: BertConfig, name: str) -> None:
    ours, theirs = getattr(student, name), getattr(teacher, name)
    if ours != theirs:
        raise ConfigError(f"the student's {name} ({ours}) must be the teacher's ({theirs})")


def load_teacher(folder: Path) -> BertForMaskedLM:
    """Read a checkpoint folder; raises CheckpointError if it has no MLM head."""
    teacher = BertForMaskedLM(BertConfig.read(folder))
    fresh = load_into(teacher, folder)
    if missing := [name for name in fresh if name.startswith("cls.")]:
        raise CheckpointError(f"{folder} is no teacher: it has no MLM head ({missing[0]} is missing)")
    return teacher


class Decoded(NamedTuple):
    """A decoder, and the states that it reads."""

    states: Tensor
    """(P, E)"""
    weight: Tensor
    """(V, E)"""
    bias: Tensor | None
    """(V,)"""

    @classmethod
    def of(cls, model: BertForMaskedLM, hidden: Tensor) -> "Decoded":
        """Return a model's decoder with what it reads of hidden states (P, H)."""
        head = model.cls.predictions
        return cls(model.decoded(hidden), head.decoder.weight, head.bias)


def soft_targets(ours: Decoded, theirs: Decoded, temperature: float) -> Tensor:
    """Return the sum of `bert.nn.losses.soft_targets` over the positions; no gradient goes to the teacher."""
    total: Tensor = _SoftTargets.apply(*ours, *theirs, temperature)  # type: ignore[no-untyped-call]
    return total


class _SoftTargets(Function):
    """Gradients are computed with the loss, slice by slice, so that logits need not be kept or computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        their_states: Tensor,
        their_weight: Tensor,
        their_bias: Tensor | None,
        temperature: float,
    ) -> Tensor:
        """Return T² · KL(theirs ‖ ours) at temperature T, summed over positions."""
        total = torch.zeros((), dtype=_at_least_float(weight.dtype), device=states.device)
        to_states, to_weight = torch.empty_like(states), torch.zeros_like(weight)
        to_bias = None if bias is None else torch.zeros_like(bias)
        size = max(1, SLICE_LOGITS // len(weight))
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            log_ours = _log_shares(states[part], weight, bias, temperature)
            log_theirs = _log_shares(their_states[part], their_weight, their_bias, temperature)
            total += F.kl_div(log_ours, log_theirs, reduction="sum", log_target=True)
            # The derivative of the divergence by our logits, times T².
            gradient = log_ours.exp_().sub_(log_theirs.exp_()).mul_(temperature)
            to_states[part] = gradient @ weight
            to_weight += gradient.T @ states[part]
            if to_bias is not None:
                to_bias += gradient.sum(0)
        ctx.save_for_backward(to_states, to_weight, to_bias)
        return total * temperature**2

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients of the sum."""
        ours = [None if gradient is None else gradient * factor for gradient in ctx.saved_tensors]
        return (*ours, None, None, None, None)


def _log_shares(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return the logarithms of the probabilities at a temperature (P, V)."""
    logits = F.linear(states, weight, bias)
    return F.log_softmax(logits.to(_at_least_float(logits.dtype)) / temperature, -1)


def _at_least_float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
