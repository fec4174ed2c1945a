"""Bases and checkpoints of models for labels of the request: a GLiNER, or a body that becomes one."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.gliner import (
    GLINER_CONFIG,
    check_body,
    is_gliner,
    read_config,
    read_gliner,
)
from bert.checkpoint.own_gliner import gliner_values, gliner_weights, with_markers
from bert.checkpoint.weight_files import WEIGHTS
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.files import atomic_write
from bert.nn.encoder import initialize
from bert.nn.heads import BertHead
from bert.nn.prompted import BertForOpenNer
from bert.tasks.registry import TASKS
from bert.tasks.spec import LabelPrompt
from bert.tokenizer import Tokenizer
from training.settings import RANDOM, FinetuneSettings


def base_config(settings: FinetuneSettings) -> BertConfig:
    """Return the config of the base; of a body its vocabulary has no markers. Raises CheckpointError, ConfigError."""
    folder, is_open = resolve_base(settings.base.removeprefix(RANDOM)), TASKS[settings.task].has_open_labels
    if is_gliner(folder):
        if not is_open:
            raise ConfigError(f"base {settings.base!r} is a GLiNER, from which only open_ner is trained")
        values, config = read_config(folder)
        if values.get("labels_encoder"):
            raise ConfigError(f"base {settings.base!r} is a bi-encoder, which is not trained")
        return config
    config = BertConfig.read(folder)
    if is_open:
        check_body(config.model_type)
    return config


def base_tokenizer(settings: FinetuneSettings) -> tuple[Tokenizer, LabelPrompt | None]:
    """Return the tokenizer of the base, and how labels are read where the task takes labels of the request."""
    folder = resolve_base(settings.base.removeprefix(RANDOM))
    if is_gliner(folder):
        base_config(settings)  # refuses other tasks and other kinds
        (_, spec, _, tokenizer), _ = read_gliner(folder, {})
        return tokenizer, spec.label_prompt
    tokenizer = Tokenizer.load(folder)
    if not TASKS[settings.task].has_open_labels:
        return tokenizer, None
    own, (tokenizer, (label, separator)) = settings.open_ner, with_markers(tokenizer)
    return tokenizer, LabelPrompt(label, separator, own.span_mode, width=own.width, max_width=own.max_width)


def add_pieces(model: BertHead, pieces: int) -> None:
    """Give the word embedding so many rows: those that are there, and fresh ones after them."""
    table = model.bert.embeddings.word_embeddings
    widened = nn.Embedding(pieces, table.embedding_dim, padding_idx=table.padding_idx)
    initialize(widened, model.config.initializer_range)
    kept = min(pieces, table.num_embeddings)
    with torch.no_grad():
        widened.weight[:kept] = table.weight[:kept]
    model.bert.embeddings.word_embeddings = widened
    model.config = model.bert.config = replace(model.config, vocab_size=pieces)


def save_gliner(folder: Path, model: BertForOpenNer, tokenizer: Tokenizer) -> None:
    """Write a folder that `gliner` loads."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(gliner_weights(weights, model.config), folder / WEIGHTS, metadata={"format": "pt"})
    content = gliner_values(model.origin, model.config, model.prompt)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    atomic_write(folder / GLINER_CONFIG, text)
    shape = model.config
    tokenizer.save(folder, segments=shape.has_segments, max_tokens=shape.max_position_embeddings)
