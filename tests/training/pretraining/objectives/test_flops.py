from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bert.nn.heads import BertForMaskedLM
from tests.support.every_objective import DEBERTA_V3, deberta
from tests.support.objectives import batch, config, weighted
from training.pretraining.mfu import Utilisation
from training.pretraining.new_model import ModelSettings, new_config
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

CONFIG = config(
    vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256
)
TEACHER = config(
    vocab_size=500, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=256
)
MODERN = new_config(
    ModelSettings(model_type="modernbert", hidden_size=64, num_hidden_layers=3, num_attention_heads=4), 500, 0
)


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLanguageModel(CONFIG),
        MaskedLanguageModel(MODERN),
        MaskedLanguageModelWithPairs(CONFIG),
        LeftToRight(CONFIG),
        SpanBoundary(CONFIG),
        ReplacedToken(CONFIG),
        ReplacedToken(CONFIG, ReplacedTokenSettings(generator_width=1.0)),
        ReplacedToken(deberta(CONFIG), DEBERTA_V3),
        # The logits of masked words are computed again for `mlm`, which is not needed: without it.
        *(
            Distillation(
                CONFIG,
                BertForMaskedLM(TEACHER),
                DistillationSettings(teacher="t", hard_weight=0.0, soft_over=over),
            )
            for over in get_args(DistillationSettings.model_fields["soft_over"].annotation)
        ),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_flops_of_an_objective_are_those_that_torch_counts(objective: Objective) -> None:
    texts = batch(0, 500, [24] * 8)
    # In texts of a usual length few spans lie at an edge, where they have no borders.
    borders = torch.stack([texts.masked - 1, texts.masked + 1], 1)
    texts = replace(texts, bounded=torch.arange(len(texts.masked)), borders=borders)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        weighted(objective, objective(texts)).backward()
    using = Utilisation(objective, len(texts.labels) / texts.tokens, peak_flops=1.0)
    ours = using.share(tokens_per_second=texts.tokens, mean_length=24)
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.02)
