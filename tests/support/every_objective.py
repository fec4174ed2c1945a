"""Every objective, small and filled with random weights."""

from collections.abc import Callable
from pathlib import Path

from bert.config import BertConfig
from bert.nn.heads import BertForMaskedLM
from tests.support.bert_reference import fill
from tests.support.objectives import config, filled
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.distillation import Distillation
from training.pretraining.objectives.left_to_right import LeftToRight
from training.pretraining.objectives.mlm import MaskedLanguageModel, MaskedLanguageModelWithPairs
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.objectives.span import SpanBoundary
from training.pretraining.settings import DistillationSettings


def teacher(of: BertConfig) -> BertForMaskedLM:
    """Return a teacher of the same shape with other random weights."""
    model = BertForMaskedLM(of)
    fill(model, 77)
    return model


MAKERS: dict[str, Callable[[BertConfig], Objective]] = {
    "mlm": MaskedLanguageModel,
    "mlm+nsp": MaskedLanguageModelWithPairs,
    "mlm+sop": lambda shape: MaskedLanguageModelWithPairs(shape, "sop"),
    "left_to_right": LeftToRight,
    "span": SpanBoundary,
    "replaced_token": ReplacedToken,
    "distillation": lambda shape: Distillation(
        shape, teacher(shape), DistillationSettings(teacher=Path("t"))
    ),
}


def make(name: str, seed: int = 0) -> Objective:
    """Return an objective whose shape and weights are drawn from the seed."""
    return filled(MAKERS[name](config(seed, num_hidden_layers=1 + seed % 2)), seed)
