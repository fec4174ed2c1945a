"""DistilBERT: a small model learns a large one's distributions over the vocabulary."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bert.bodies.tensors import SEGMENTS
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForMaskedLM
from bert.nn.losses import Loss
from training.pretraining.objectives.base import encode, select
from training.pretraining.objectives.mlm import MaskedLanguageModel
from training.pretraining.objectives.soft_targets import Decoded, soft_targets
from training.pretraining.pretrain_batch import PretrainBatch
from training.pretraining.settings import DistillationSettings

LAYER = "bert.encoder.layer."


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

    def forward(self, batch: PretrainBatch) -> dict[str, Loss]:
        """Return those of `soft_mlm`, `mlm` (over masked positions) and `cosine` (over tokens) that have a weight."""
        hidden = encode(self.model, batch)
        with torch.no_grad():
            theirs = encode(self.teacher.to(hidden.device), batch)
        every = {
            "soft_mlm": lambda: self._soft(hidden, theirs, batch),
            "mlm": lambda: self._hard(hidden, batch),
            "cosine": lambda: cosine(hidden, theirs, batch),
        }
        return {name: every[name]() for name in self.weights}

    def _soft(self, hidden: Tensor, theirs: Tensor, batch: PretrainBatch) -> Loss:
        """Compare the distributions over the vocabulary, from hidden states (R, T, H) of both models."""
        positions = real_positions(batch) if self.predicts_all else batch.masked
        with torch.no_grad():
            wanted = Decoded.of(self.teacher, select(theirs, positions))
        assert isinstance(self.model, BertForMaskedLM)
        ours = Decoded.of(self.model, select(hidden, positions))
        return Loss(soft_targets(ours, wanted, self.temperature), len(positions))

    def _hard(self, hidden: Tensor, batch: PretrainBatch) -> Loss:
        """Compare with the masked words themselves, from hidden states (R, T, H)."""
        return Loss(self.word_loss(select(hidden, batch.masked), batch.labels), len(batch.labels))

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
