"""DistilBERT: a small model learns a large one's predictions of the masked words."""

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
from training.pretraining.objectives.base import cross_entropy, encode, select
from training.pretraining.objectives.mlm import MaskedLanguageModel
from training.pretraining.settings import DistillationSettings


class Distillation(MaskedLanguageModel):
    """Learn a teacher's distribution over the vocabulary, the words themselves, and the direction of hidden states.

    Sanh et al. 2019 (arXiv 1910.01108), section 3. The distributions are compared at masked positions only.
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
        for name in ("max_position_embeddings", "type_vocab_size"):
            if getattr(config, name) > getattr(teacher.config, name):
                _check_same(config, teacher.config, name)
        self.frozen: tuple[BertForMaskedLM] = (teacher.requires_grad_(False).eval(),)
        self.temperature = settings.temperature
        weights = {
            "soft_mlm": settings.soft_weight, "mlm": settings.hard_weight, "cosine": settings.cosine_weight,
        }  # fmt: skip
        self.weights = {name: weight for name, weight in weights.items() if weight}

    @property
    def teacher(self) -> BertForMaskedLM:
        """The large model, frozen and without dropout."""
        return self.frozen[0]

    def targets(self, batch: PretrainBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of tokens."""
        return {name: batch.tokens if name == "cosine" else len(batch.labels) for name in self.weights}

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
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

        DistilBERT's six are 0, 2, 4, 7, 9 and 11. Raises ConfigError unless all else of the two models is alike.
        """
        ours, theirs = self.model.config, self.teacher.config
        for name in ("hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size"):
            _check_same(ours, theirs, name)
        for name in ("projects_embeddings", "relative_attention_num_buckets"):
            _check_same(ours, theirs, name)
        weights = self.teacher.state_dict()
        for at, taken in enumerate(spread(ours.num_hidden_layers, len(theirs.layer_order))):
            layer = self.teacher.bert.encoder.layer[theirs.layer_order[taken]].state_dict()
            weights |= {f"bert.encoder.layer.{at}.{name}": weight for name, weight in layer.items()}
        self.model.load_state_dict({name: weights[name] for name in self.model.state_dict()})


def spread(layers: int, of: int) -> list[int]:
    """Return the indices of the layers to keep: the first, the last, and others at even distances between."""
    return [round(i * (of - 1) / max(1, layers - 1)) for i in range(layers)]


def cosine(hidden: Tensor, theirs: Tensor, batch: PretrainBatch) -> Loss:
    """Compare the directions of hidden states (R, T, H): 1 - cosine, over real tokens."""
    away = 1 - F.cosine_similarity(hidden.float(), theirs.float(), dim=-1)  # (R, T)
    return Loss((away * batch.real).sum(), batch.tokens)


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
