"""A pretrained model as a checkpoint folder in the ecosystem's format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bert.files import atomic_dir
from bert.nn.checkpoint import save_weights
from bert.tokenizer import Tokenizer
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings

RECIPE = "pretrain.json"


def save_model(
    folder: Path,
    objective: Objective,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    scores: Mapping[str, Any],
    command: str,
) -> None:
    """Write `config.json`, `model.safetensors`, the tokenizer, and `pretrain.json` with settings and scores.

    `weights` are the objective's parameters by name, whole and on the CPU.
    """
    prefix = "model."
    named = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    recipe = {"command": command, "scores": scores, "settings": settings.model_dump(mode="json")}
    with atomic_dir(folder) as aside:
        save_weights(named, objective.model.config, aside, objective.architecture, {})
        tokenizer.save(aside)
        objective.save_beside(aside, weights)
        (aside / RECIPE).write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
