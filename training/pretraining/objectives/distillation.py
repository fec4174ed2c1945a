"""DistilBERT: a small model learns a large one's predictions of the masked words."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForMaskedLM
from bert.nn.losses import Loss, soft_targets
from training.pretraining.batch import PretrainBatch
from training.pretraining.objectives.base import Objective, cross_entropy, encode, select


@dataclass(frozen=True)
class DistillationWeights:
    """Weights of the three losses, by default those of DistilBERT's training command."""

    temperature: float = 2.0
    soft: float = 5.0
    hard: float = 2.0
    cosine: float = 1.0


class Distillation(Objective):
    """Learn a teacher's distribution over the vocabulary, the words themselves, and the direction of hidden states.

    Sanh et al. 2019 (arXiv 1910.01108), section 3. The distributions are compared at masked positions only.
    """

    architecture = "BertForMaskedLM"

    def __init__(
        self, config: BertConfig, teacher: BertForMaskedLM, weights: DistillationWeights | None = None
    ) -> None:
        """Make the student with fresh weights; raises ConfigError for a teacher that does not fit it."""
        super().__init__()
        chosen = weights or DistillationWeights()
        check_fits(config, teacher.config, chosen)
        self.model = BertForMaskedLM(config)
        self.frozen: tuple[BertForMaskedLM] = (teacher.requires_grad_(False).eval(),)
        self.temperature = chosen.temperature
        every = {"soft_mlm": chosen.soft, "mlm": chosen.hard, "cosine": chosen.cosine}
        self.weights = {name: weight for name, weight in every.items() if weight}

    @property
    def teacher(self) -> BertForMaskedLM:
        """The large model, frozen and without dropout."""
        return self.frozen[0]

    def masked_logits(self, batch: PretrainBatch) -> Tensor:
        """Return the student's logits (M, V)."""
        return self.model.score(select(encode(self.model, batch), batch.masked))

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of tokens."""
        every = {"soft_mlm": len(batch.labels), "mlm": len(batch.labels), "cosine": batch.tokens}
        return {name: every[name] for name in self.weights}

    def losses(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return those of `soft_mlm`, `mlm` (over masked positions) and `cosine` (over tokens) that have a weight."""
        hidden = encode(self.model, batch)
        logits = self.model.score(select(hidden, batch.masked))
        with torch.no_grad():
            theirs = encode(self.teacher.to(hidden.device), batch)
            their_logits = self.teacher.score(select(theirs, batch.masked))
        every = {
            "soft_mlm": lambda: soft_targets(logits, their_logits, self.temperature),
            "mlm": lambda: cross_entropy(logits, batch.labels, len(batch.labels)),
            "cosine": lambda: cosine(hidden, theirs, batch),
        }
        return {name: every[name]() for name in self.weights}

    def start_from_teacher(self) -> None:
        """Copy the teacher's embeddings, head, and layers spread evenly from its first to its last.

        DistilBERT's six are 0, 2, 4, 7, 9 and 11. Raises ConfigError unless the two models are equally wide.
        """
        ours, theirs = self.model.config, self.teacher.config
        if (ours.hidden_size, ours.intermediate_size) != (theirs.hidden_size, theirs.intermediate_size):
            raise ConfigError(
                f"the student's layers ({ours.hidden_size} wide, {ours.intermediate_size} inside) must be as the "
                f"teacher's ({theirs.hidden_size}, {theirs.intermediate_size}) to start from them"
            )
        for name in ("max_position_embeddings", "type_vocab_size"):
            if getattr(ours, name) != getattr(theirs, name):
                raise ConfigError(
                    f"the student's {name} ({getattr(ours, name)}) must be the teacher's ({getattr(theirs, name)}) to start "
                    "from it"
                )
        encoder = self.model.bert.encoder.layer
        copied = {
            f"bert.encoder.layer.{at}.": f"bert.encoder.layer.{taken}."
            for at, taken in enumerate(spread(len(encoder), theirs.num_hidden_layers))
        }
        weights = self.teacher.state_dict()
        own = {name: name for name in self.model.state_dict()}
        for at, taken in copied.items():
            own |= {name: taken + name.removeprefix(at) for name in own if name.startswith(at)}
        self.model.load_state_dict({name: weights[source] for name, source in own.items()})


def spread(layers: int, of: int) -> list[int]:
    """Return the indices of the layers to keep: the first, the last, and others at even distances between."""
    return [round(i * (of - 1) / max(1, layers - 1)) for i in range(layers)]


def cosine(hidden: Tensor, theirs: Tensor, batch: PretrainBatch) -> Loss:
    """Compare the directions of hidden states (R, T, H): 1 - cosine, over real tokens."""
    away = 1 - F.cosine_similarity(hidden.float(), theirs.float(), dim=-1)  # (R, T)
    return Loss((away * batch.real).sum(), batch.tokens)


def check_fits(config: BertConfig, teacher: BertConfig, weights: DistillationWeights) -> None:
    """Raise ConfigError where two models cannot be compared."""
    for name in ("vocab_size", "max_position_embeddings", "type_vocab_size"):
        if getattr(config, name) > getattr(teacher, name):
            raise ConfigError(
                f"the student's {name} ({getattr(config, name)}) must not pass the teacher's ({getattr(teacher, name)})"
            )
    if config.vocab_size != teacher.vocab_size:
        raise ConfigError(
            f"the student's vocab_size ({config.vocab_size}) must be the teacher's ({teacher.vocab_size})"
        )
    if weights.cosine and config.hidden_size != teacher.hidden_size:
        raise ConfigError(
            f"hidden states {config.hidden_size} and {teacher.hidden_size} wide have no cosine: "
            "set cosine_weight to 0"
        )


def load_teacher(folder: Path) -> BertForMaskedLM:
    """Read a checkpoint folder; raises CheckpointError if it has no MLM head."""
    teacher = BertForMaskedLM(BertConfig.read(folder))
    fresh = load_into(teacher, folder)
    if missing := [name for name in fresh if name.startswith("cls.")]:
        raise CheckpointError(f"{folder} is no teacher: it has no MLM head ({missing[0]} is missing)")
    return teacher
