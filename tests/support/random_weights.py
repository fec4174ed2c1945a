"""Weights of any config without a checkpoint: noise on every tensor, so that none may be left out."""

from typing import Any

import numpy as np

from bert.bodies.mpnet import RELATIVE_BIAS
from bert.checkpoint.tensor_names import Weights, needed_shapes
from bert.config import BertConfig
from bert.tasks.spec import TaskSpec
from tests.support.checkpoints import vocabulary
from tests.support.configs import config_of


def small_config(**changes: Any) -> BertConfig:
    """Return a config of four narrow layers for `tests.support.checkpoints.vocabulary`."""
    values = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
    }
    return config_of(**{**values, **changes})


def random_weights(config: BertConfig, spec: TaskSpec, seed: int = 0) -> Weights:
    """Return all that the task's graph reads."""
    drawn = np.random.default_rng(seed)
    weights = {}
    for name, shape in needed_shapes(config, spec):
        # A bias of distances as large as MPNet's own, up to some 5.
        scale = 2.0 if name == RELATIVE_BIAS else 0.15 if len(shape) > 1 else 0.3
        noise = drawn.normal(0.0, scale, shape) + float(name.endswith("LayerNorm.weight"))
        weights[name] = noise.astype(np.float32)
    return weights
