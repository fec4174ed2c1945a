"""Pretraining objectives: the task of the model, and its losses."""

from bert.checkpoint.base_models import resolve_base
from bert.config import BertConfig
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.distillation import Distillation, load_teacher
from training.pretraining.objectives.language_models import (
    LeftToRight,
    MaskedLanguageModel,
    MaskedLanguageModelWithPairs,
    SpanBoundary,
)
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.settings import PretrainSettings


def build(settings: PretrainSettings, config: BertConfig, generator: BertConfig | None = None) -> Objective:
    """Return the objective that the settings name, around a model of this shape with fresh weights.

    `generator` is the shape of a generator that a base has already. Raises ConfigError and CheckpointError for a teacher
    or a generator that does not fit.
    """
    match settings.objective:
        case "mlm":
            return MaskedLanguageModel(config)
        case "mlm+nsp":
            return MaskedLanguageModelWithPairs(config, "nsp")
        case "mlm+sop":
            return MaskedLanguageModelWithPairs(config, "sop")
        case "left_to_right":
            return LeftToRight(config)
        case "span":
            return SpanBoundary(config)
        case "replaced_token":
            return ReplacedToken(config, settings.replaced_token, generator)
        case "distillation":
            assert settings.distillation is not None, "the settings have been validated"
            distilled = Distillation(
                config, load_teacher(resolve_base(settings.distillation.teacher)), settings.distillation
            )
            if settings.distillation.start_from_teacher and settings.base is None:
                distilled.start_from_teacher()
            return distilled
