"""The objective that the settings name."""

from collections.abc import Callable

from bert.config import BertConfig
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.distillation import Distillation, DistillationWeights, load_teacher
from training.pretraining.objectives.left_to_right import LeftToRight
from training.pretraining.objectives.mlm import MaskedLanguageModel, MaskedLanguageModelWithPairs
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.objectives.span import SpanBoundary
from training.pretraining.settings import PretrainSettings


def build(settings: PretrainSettings, config: BertConfig) -> Objective:
    """Return the objective that the settings name, around a model of this shape with fresh weights.

    Raises ConfigError and CheckpointError for a teacher that does not fit.
    """
    wide = settings.replaced_token
    by_name: dict[str, Callable[[], Objective]] = {
        "mlm": lambda: MaskedLanguageModel(config),
        "mlm+nsp": lambda: MaskedLanguageModelWithPairs(config, "nsp"),
        "mlm+sop": lambda: MaskedLanguageModelWithPairs(config, "sop"),
        "left_to_right": lambda: LeftToRight(config),
        "span": lambda: SpanBoundary(config),
        "replaced_token": lambda: ReplacedToken(config, wide.generator_width, wide.discriminator_weight),
        "distillation": lambda: _distillation(settings, config),
    }
    return by_name[settings.objective]()


def _distillation(settings: PretrainSettings, config: BertConfig) -> Distillation:
    chosen = settings.distillation
    assert chosen is not None, "the settings have been validated"
    weights = DistillationWeights(
        chosen.temperature, chosen.soft_weight, chosen.hard_weight, chosen.cosine_weight
    )
    objective = Distillation(config, load_teacher(chosen.teacher), weights)
    if chosen.start_from_teacher:
        objective.start_from_teacher()
    return objective
