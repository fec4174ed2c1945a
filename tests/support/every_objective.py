"""Every objective, small and filled with random weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bert.bodies.deberta import DebertaBody
from bert.config import BertConfig
from bert.nn.heads import BertForMaskedLM
from tests.support.bert_reference import fill
from tests.support.objectives import config, filled
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.distillation import Distillation
from training.pretraining.objectives.language_models import (
    LeftToRight,
    MaskedLanguageModel,
    MaskedLanguageModelWithPairs,
    SpanBoundary,
)
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.settings import DistillationSettings, ReplacedTokenSettings


def teacher(of: BertConfig) -> BertForMaskedLM:
    """Return a teacher of the same shape with other random weights."""
    model = BertForMaskedLM(of)
    fill(model, 77)
    return model


def electra(of: BertConfig) -> BertConfig:
    """Return the shape with narrow embeddings, as an ELECTRA."""
    return replace(of, model_type="electra", embedding_size=12)


def deberta(of: BertConfig) -> BertConfig:
    """Return the shape as that of a DeBERTa of version 3, with segments."""
    return replace(
        of,
        model_type="deberta-v2",
        body=DebertaBody(
            pos_att_type=("p2c", "c2p"),
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_buckets=8,
            position_biased_input=False,
            legacy=False,
        ),
    )


DEBERTA_V3 = ReplacedTokenSettings(
    generator_width=1.0, generator_depth=0.5, embedding_sharing="gradient_disentangled"
)
MAKERS: dict[str, Callable[[BertConfig], Objective]] = {
    "mlm": MaskedLanguageModel,
    "mlm+nsp": MaskedLanguageModelWithPairs,
    "mlm+sop": lambda shape: MaskedLanguageModelWithPairs(shape, "sop"),
    "left_to_right": LeftToRight,
    "span": SpanBoundary,
    "replaced_token": ReplacedToken,
    "electra": lambda shape: ReplacedToken(electra(shape)),
    "deberta_v3": lambda shape: ReplacedToken(deberta(shape), DEBERTA_V3),
    "distillation": lambda shape: Distillation(
        shape, teacher(shape), DistillationSettings(teacher=Path("t"))
    ),
}


DETECTORS = ("replaced_token", "electra", "deberta_v3")
"""Recipes and objectives that have a generator."""


def make(name: str, seed: int = 0) -> Objective:
    """Return an objective whose shape and weights are drawn from the seed."""
    return filled(MAKERS[name](config(seed, num_hidden_layers=1 + seed % 2)), seed)
