"""The model of a run: base or earlier weights loaded, an adapter put in if asked for, and saved as checkpoints."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from bert.checkpoint.base_models import resolve_base, weights_sha256
from bert.checkpoint.cached_files import origin
from bert.checkpoint.gliner import is_gliner
from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from bert.checkpoint.weights import Checkpoint
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.files import atomic_dir
from bert.nn.checkpoint import load_into, read_weights, save_checkpoint
from bert.nn.heads import BertForSparse, BertHead
from bert.nn.prompted import BertForOpenNer
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors import sentence_transformers, sparse_folder
from bert.text.letter_shapes import SHAPES
from training.engine.distributed import is_spread
from training.engine.state import fill_weights
from training.finetuning.adapter import add_lora, is_adapted, read_adapter, save_adapter
from training.finetuning.prompted import add_pieces, base_config, save_gliner
from training.settings import RANDOM, FinetuneSettings
from training.tasks import task_class
from training.tasks.base import FinetuneTask

if TYPE_CHECKING:
    import peft

logger = logging.getLogger(__name__)


def build(settings: FinetuneSettings, task: FinetuneTask) -> tuple[BertHead, nn.Module]:
    """Return BERT with its head, and what is trained: the same, or an adapter around it."""
    folder = base_folder(settings.base)
    config = with_dropout(base_config(settings), settings.dropout, settings.attention_dropout)
    if settings.r_drop and not _has_dropout(config, settings):
        raise ConfigError("r_drop compares two readings with different dropout, and all dropout is 0")
    tokenizer = task.tokenizer
    segments = 1 if task.spec.letter_shapes else tokenizer.segments  # more are added
    pieces = tokenizer.highest_id() + 1
    is_new = task.spec.label_prompt is not None and not is_gliner(folder)  # its markers are added
    config.check_fits(min(pieces, config.vocab_size) if is_new else pieces, task.spec.max_tokens, segments)
    if task.architecture.removeprefix("Bert") in config.family.unknown_classes:
        logger.warning(
            "warning: transformers has no class of %s for %s: the result is read by bert-export and bert-finetune only",
            config.model_type,
            task.spec.task,
        )
    model = task.model(config)
    fresh = [] if is_random(settings.base) else load_into(model, folder)
    if fresh and (is_gliner(folder) or isinstance(model, BertForSparse)):
        needed = (
            ": sparse vectors begin with a masked language model" if isinstance(model, BertForSparse) else ""
        )
        raise CheckpointError(f"{folder} lacks {', '.join(fresh[:5])}{needed}")
    if is_new:
        add_pieces(model, pieces)
    has_shapes = _reads_shapes(settings.base)
    if task.spec.letter_shapes and not has_shapes:
        add_segments(model)
    if has_shapes and not task.spec.letter_shapes:
        logger.warning("warning: %s learned from letter shapes, and this run has none", settings.base)
    if settings.freeze_embeddings:
        model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    if settings.lora is None:
        return model, model
    return model, add_lora(model, settings.lora)


def of_checkpoint(checkpoint: Checkpoint) -> tuple[BertHead, FinetuneTask]:
    """Return a fine-tuned model that is only read, and its task."""
    task = task_class(checkpoint.spec.task)(checkpoint.tokenizer, checkpoint.spec)
    with torch.random.fork_rng():  # a student's fresh weights are those that it has without a teacher
        model = task.model(checkpoint.config)
    model.load_state_dict({name: torch.tensor(x) for name, x in checkpoint.weights.items()}, strict=False)
    return model.eval(), task


def _has_dropout(config: BertConfig, settings: FinetuneSettings) -> bool:
    """Tell whether two readings of what is trained may differ."""
    adapter = settings.lora.dropout if settings.lora else 0.0
    attention = config.attention_probs_dropout_prob
    return any((config.hidden_dropout_prob, config.classifier_dropout, attention, adapter))


def _reads_shapes(base: str) -> bool:
    """Tell whether a base was fine-tuned with letter shapes, whose segments it has then learned."""
    folder = base_folder(base)
    has_task = not is_random(base) and (folder / "task.json").is_file()
    return has_task and TaskSpec.read(folder).letter_shapes


def add_segments(model: BertHead) -> None:
    """Give each letter shape a segment, which begins as the base's first. Raises ConfigError for a body without any."""
    if not model.config.has_segments:
        raise ConfigError(f"letter_shapes need segment embeddings, and {model.config.model_type} has none")
    table = model.bert.embeddings.token_type_embeddings
    assert isinstance(table, nn.Embedding)
    widened = nn.Embedding(SHAPES, table.embedding_dim)
    with torch.no_grad():
        widened.weight.copy_(table.weight[:1].expand_as(widened.weight))
    model.bert.embeddings.token_type_embeddings = widened
    model.config = model.bert.config = replace(model.config, type_vocab_size=SHAPES)


def is_random(base: str) -> bool:
    """Tell whether a base names a folder's shape and vocabulary only, and wants fresh weights."""
    return base.startswith(RANDOM)


def base_folder(base: str) -> Path:
    """Return the folder with the base's config and tokenizer. Raises CheckpointError."""
    return resolve_base(base.removeprefix(RANDOM))


def name_base(base: str) -> dict[str, str]:
    """Return name, commit (of a model of the hub) and hash of an adapter's base; nothing where the weights are fresh."""
    if is_random(base):
        return {}
    folder = base_folder(base)
    hub_model, sha256 = origin(folder), weights_sha256(folder)
    name = {"name": hub_model["repo"], "commit": hub_model["commit"]} if hub_model else {"name": base}
    return {**name, "sha256": sha256} if sha256 else name


def base_embedding(base: str) -> TaskSpec:
    """Return how a base makes embeddings, the mean of the tokens where nothing says it. Raises ConfigError."""
    unknown = TaskSpec("similarity")
    if is_random(base):
        return unknown
    folder = base_folder(base)
    if (folder / "task.json").is_file():
        spec = TaskSpec.read(folder)
        return spec if TASKS[spec.task].embeds else unknown
    if not sentence_transformers.is_embedder(folder):
        return unknown
    return sentence_transformers.honour(folder, unknown, unknown.max_tokens)


def with_dropout(config: BertConfig, hidden: float | None, attention: float | None) -> BertConfig:
    """Return the configuration with the rates that are given; `hidden` is also that of a head with a rate of its own."""
    if hidden is not None:
        classifier = None if config.classifier_dropout is None else hidden
        answers = hidden if config.qa_dropout else 0.0
        config = replace(
            config, hidden_dropout_prob=hidden, classifier_dropout=classifier, qa_dropout=answers
        )
    return config if attention is None else replace(config, attention_probs_dropout_prob=attention)


def save(
    folder: Path,
    model: BertHead,
    trained: nn.Module,
    settings: FinetuneSettings,
    task: FinetuneTask,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint folder aside and rename it into place: an adapter, or the whole model.

    `weights` are those of a model in parts, gathered.
    """
    with atomic_dir(folder) as aside:
        if is_adapted(trained):
            save_adapter(trained, aside, settings.base, model.config, task.architecture)
        else:
            save_whole(aside, model, task, weights)
        task.spec.write(aside)


def save_whole(
    folder: Path, model: BertHead, task: FinetuneTask, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write all weights with the tokenizer, as `transformers` loads them, embeddings for sentence-transformers too.

    `weights` are by default the model's own.
    """
    shape, tokenizer = model.config, task.tokenizer
    if isinstance(model, BertForOpenNer):
        save_gliner(folder, model, tokenizer)
        return
    ids = shape.family.special_ids(tokenizer.cls_id, tokenizer.sep_id)
    save_checkpoint(model, folder, task.architecture, {**label_maps(task.spec), **ids}, weights)
    tokenizer.save(folder, segments=shape.has_segments, max_tokens=shape.max_position_embeddings)
    if isinstance(model, BertForSparse):
        sparse_folder.write(folder, task.spec, shape.vocab_size)
    elif TASKS[task.spec.task].embeds:
        sentence_transformers.write(folder, task.spec, shape.hidden_size)


def label_maps(spec: TaskSpec) -> dict[str, object]:
    """Return what `transformers` wants in a config: labels by number and numbers by label."""
    if not spec.labels:
        return {}
    problem = {"single_label": "single_label_classification", "multi_label": "multi_label_classification"}
    maps: dict[str, object] = {
        "id2label": {str(i): label for i, label in enumerate(spec.labels)},
        "label2id": {label: i for i, label in enumerate(spec.labels)},
    }
    if TASKS[spec.task].has_problems:
        maps["problem_type"] = problem.get(spec.problem_type, "regression")
    return maps


def restore(folder: Path, model: BertHead, trained: nn.Module) -> None:
    """Fill the trained weights from a checkpoint that `save` wrote."""
    if is_adapted(trained):
        import peft

        peft.set_peft_model_state_dict(trained, read_adapter(folder, model.config))
    elif any(map(is_spread, model.parameters())):
        fill_weights(model, read_weights(folder))
    else:
        load_into(model, folder)


def start_from(folder: Path, spec: TaskSpec, model: BertHead, trained: nn.Module) -> None:
    """Fill all trained weights from `folder`, which bert-finetune wrote.

    `trained` is `model`, or the adapter around it. Raises ConfigError where that run had another task, other labels,
    another base or another kind of adapter, and CheckpointError where the folder cannot be read or lacks a weight.
    """
    earlier = TaskSpec.read(folder)
    for name in ("task", "problem_type", "labels", "letter_shapes"):
        if getattr(earlier, name) != getattr(spec, name):
            raise ConfigError(
                f"start_from {folder} has {name} {getattr(earlier, name)!r}, and this run {getattr(spec, name)!r}"
            )
    if is_adapted(trained):
        _check_adapter(folder, earlier, spec, trained)
        _fill_adapter(folder, trained, model.config)
    elif (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(
            f"start_from {folder} holds an adapter: set lora as that run did, or make it a full checkpoint first, "
            f"bert-average --checkpoints {folder} --output-dir FOLDER"
        )
    elif missing := load_into(model, folder):
        raise CheckpointError(
            f"start_from {folder} lacks {', '.join(missing[:5])}: its head is not this task's"
        )


def _check_adapter(folder: Path, earlier: TaskSpec, spec: TaskSpec, trained: "peft.PeftModel") -> None:
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"start_from {folder} holds no adapter, and lora is set: leave lora out")
    if earlier.base.get("sha256") != spec.base.get("sha256"):
        raise ConfigError(
            f"start_from {folder} belongs to the base {earlier.base.get('name')!r} with other weights than "
            f"{spec.base.get('name')!r}"
        )
    theirs, ours = read_adapter_config(folder), trained.peft_config["default"]
    for name in ("r", "lora_alpha", "use_rslora"):
        if theirs.get(name) != getattr(ours, name):
            raise ConfigError(
                f"start_from {folder} has {name} {theirs.get(name)!r}, and this run {getattr(ours, name)!r}"
            )


def _fill_adapter(folder: Path, trained: "peft.PeftModel", shape: BertConfig) -> None:
    """Fill the adapter, whose weights must be exactly those of the file: peft itself passes over what does not fit."""
    import peft

    file = folder / ADAPTER_WEIGHTS
    try:
        found = read_adapter(folder, shape)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    wanted = _shapes(peft.get_peft_model_state_dict(trained, save_embedding_layers=False))
    wrong = sorted(name for name, _ in wanted.items() ^ _shapes(found).items())
    if wrong:
        raise CheckpointError(f"{file} is of another model: {', '.join(dict.fromkeys(wrong[:5]))} do not fit")
    peft.set_peft_model_state_dict(trained, found)


def _shapes(weights: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items()}
