"""Checkpoints of published shapes with random weights, as bert-export reads them.

Written without `transformers`, whose version on a GPU machine may be any.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.serve.baselines.encoder_shapes import SPECIAL_PIECES, write_tokenizer
from bert.checkpoint.tensor_names import needed_shapes
from bert.config import BertConfig
from bert.nn.checkpoint import save_weights
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

CLASSES = {
    "classification": "BertForSequenceClassification",
    "ner": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
    "similarity": "BertModel",
    "fill_mask": "BertForMaskedLM",
}
"""Task → class of BERT in a checkpoint's config."""
PAD = SPECIAL_PIECES.index("[PAD]")
GAIN = 0.7
"""Size of a product's output to its input's: near that of published models, so that errors grow as they do there."""


def shape(model_type: str, **changes: Any) -> BertConfig:
    """Return the config of a family with these values, for the tokenizer that is written here."""
    return BertConfig.from_dict({"model_type": model_type, "pad_token_id": PAD, **changes})


def write_checkpoint(folder: Path, config: BertConfig, spec: TaskSpec) -> Path:
    """Write config, random weights, tokenizer and task; the same for the same arguments. Returns the folder."""
    drawn = np.random.default_rng(0)
    weights: dict[str, torch.Tensor] = {}
    for name, dims in needed_shapes(config, spec):
        scale = GAIN / np.sqrt(dims[-1]) if len(dims) > 1 else 0.1
        values = drawn.standard_normal(dims, np.float32) * np.float32(scale)
        weights[name] = torch.from_numpy(values + np.float32(_is_norm(name)))
    save_weights(weights, config, folder, CLASSES[spec.task], _labels(spec))
    write_tokenizer(folder)
    spec.write(folder)
    return folder


def write_shape(folder: Path, config: BertConfig) -> Path:
    """Write a config and a tokenizer without weights, for a training that starts from fresh ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    write_tokenizer(folder)
    return folder


def pieces(folder: Path) -> int:
    """Return the number of pieces of a folder's tokenizer."""
    return Tokenizer.load(folder).highest_id() + 1


def _is_norm(name: str) -> bool:
    return name.endswith("weight") and ("norm" in name.lower())


def _labels(spec: TaskSpec) -> Mapping[str, object]:
    return {"id2label": dict(enumerate(spec.labels))} if spec.labels else {}
