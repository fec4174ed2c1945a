"""What the tests of tests/gpu share: a GPU in full, else the CPU in small; and checkpoints of random weights."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.serve.baselines.encoder_shapes import SPECIAL_PIECES, write_tokenizer
from bert.checkpoint.tensor_names import needed_shapes
from bert.config import BertConfig
from bert.nn.checkpoint import save_weights
from bert.tasks.spec import TaskSpec
from tests.support.checkpoints import ARCHITECTURES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"
VOCABULARY = 400
"""Rows of the table of words. The tokenizer has fewer pieces, and scores of a whole vocabulary are slow in numpy."""
GAIN = 0.7
"""Size of a product's output to its input's: near that of published models, so that errors grow as they do there."""
T = TypeVar("T")


def pick(full: T, small: T) -> T:
    """Return the value for a GPU, or that for a CPU."""
    return full if ON_GPU else small


def write_checkpoint(folder: Path, spec: TaskSpec, **config: Any) -> Path:
    """Write config, random weights, tokenizer and task, the same for the same arguments; return the folder."""
    made = BertConfig.from_dict(
        {"vocab_size": VOCABULARY, "pad_token_id": SPECIAL_PIECES.index("[PAD]"), **config}
    )
    drawn = np.random.default_rng(0)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in needed_shapes(made, spec):
        is_norm = name.endswith("weight") and "norm" in name.lower()
        scale = GAIN / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        values = drawn.standard_normal(shape, np.float32) * np.float32(scale)
        weights[name] = torch.from_numpy(values + np.float32(is_norm))
    labels = {"id2label": dict(enumerate(spec.labels))} if spec.labels else {}
    save_weights(weights, made, folder, ARCHITECTURES[spec.task], labels)
    write_tokenizer(folder)
    spec.write(folder)
    return folder
