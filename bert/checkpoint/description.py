"""The task of a checkpoint without `task.json`, by its other files and what the user says."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.families import family_of
from bert.files import read_object
from bert.tasks.hub_config import HubFiles, spec_from_config
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors import token_folders
from bert.tasks.vectors.sentence_transformers import UNKNOWN_POOLING, honour, is_embedder, read_settings

_NO_LENGTH = 10**6
"""Smallest `model_max_length` that means no limit: `transformers` writes 1e30 for a tokenizer without one."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Facts that a user states about a checkpoint; None takes what the checkpoint says."""

    pair: bool | None = None
    pooling: str | None = None
    labels: tuple[str, ...] | None = None
    max_tokens: int | None = None
    task: str | None = None


def describe(
    folder: Path, config: BertConfig, values: Mapping[str, Any], weights: Weights, stated: Stated
) -> tuple[TaskSpec, list[str]]:
    """Return the task, and remarks on what was assumed. `values` are those of `config.json`. Raises ConfigError."""
    embedder = is_embedder(folder)
    files = HubFiles(
        family_of(values).bert_config(values),
        {name: tensor.shape for name, tensor in weights.items()},
        read_settings(folder),
        embedder,
        longest(folder, config.max_position_embeddings),
    )
    if token_folders.gives_token_vectors(files.settings, files.architecture):
        layer = weights.get(token_folders.STANFORD_LAYER)
        spec = token_folders.honour(
            folder, files.max_tokens, len(layer) if layer is not None and layer.ndim == 2 else None
        )
        _check_window(config, spec)
        return spec, []
    spec, remarks = spec_from_config(
        files, embeds=stated.pooling is not None, labels=stated.labels, pair=stated.pair, task=stated.task
    )
    if not TASKS[spec.task].embeds:
        return spec, remarks
    if embedder:
        spec = honour(folder, spec, files.max_tokens)
        prompts = [name for name, text in spec.prompts.items() if text]
        remarks += [f"requests may name a prompt: {', '.join(prompts)}"] if prompts else []
    elif stated.pooling is None:
        remarks.append(UNKNOWN_POOLING)
    else:
        spec = replace(spec, pooling=stated.pooling)
    return spec, remarks


def _check_window(config: BertConfig, spec: TaskSpec) -> None:
    """Raise ConfigError where a token that fills an empty query would see nothing that it attends to."""
    how = spec.token_vectors
    assert how is not None
    last = 1 if how.query_marker is None else 2
    if how.hidden_id is not None and how.expansion_length - 1 - last > config.body.window:
        raise ConfigError(
            f"queries are filled up to {how.expansion_length} tokens to which no token attends, and layers see "
            f"{config.body.window} tokens around one: the last would attend to nothing"
        )


def overruled(spec: TaskSpec, stated: Stated) -> tuple[TaskSpec, list[str]]:
    """Return the task as the user wants it, and a remark for each contradiction. Raises ConfigError."""
    task, remarks = TASKS[spec.task], []
    if stated.task not in (None, spec.task):
        raise ConfigError(
            f"task is {stated.task!r}, as was asked, and the checkpoint's own files say {spec.task}"
        )
    fits = {
        "pair": (task.may_read_pairs, "classification"),
        "pooling": (task.embeds, "similarity"),
        "labels": (task.needs_labels, "classification and ner"),
        "max_tokens": (spec.token_vectors is None, "tasks with one length"),
    }
    for name, (known, of) in fits.items():
        said, found = getattr(stated, name), getattr(spec, name)
        if said is None or said == found:
            continue
        if not known:
            raise ConfigError(f"{name} is said of {of}, and the task is {spec.task}")
        if name == "labels" and len(said) != len(found):
            raise ConfigError(f"{len(said)} labels were given, and the model has {len(found)}")
        remarks.append(f"{name} is {found!r} by the checkpoint's own files; {said!r} is taken, as was asked")
        # A length that leaves no room for the stride needs another stride at once.
        changed = {"stride": min(spec.stride, said // 4)} if name == "max_tokens" else {}
        spec = replace(spec, **{name: said, **changed})
    return spec, remarks


def longest(folder: Path, positions: int) -> int:
    """Return how many tokens the model and its tokenizer allow. Raises ConfigError for what is not a length."""
    stated = read_object(folder / "tokenizer_config.json").get("model_max_length")
    if stated is None:
        return positions
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not stated >= 3:  # nan neither
        raise ConfigError(
            f"tokenizer_config.json: model_max_length ({stated!r}) must be a number of at least 3"
        )
    return min(positions, int(stated)) if stated < _NO_LENGTH else positions
