"""The model of a run: base weights loaded, an adapter put in if asked for, and saved as checkpoints."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bert.checkpoint.base_models import resolve_base, weights_sha256
from bert.checkpoint.cached_files import origin
from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.files import atomic_dir
from bert.nn.checkpoint import load_into, save_checkpoint
from bert.nn.heads import BertHead
from bert.tasks import sentence_transformers
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from bert.text.letter_shapes import SHAPES
from training.settings import RANDOM, FinetuneSettings, LoraSettings
from training.tasks.base import FinetuneTask

if TYPE_CHECKING:  # peft imports transformers, which takes seconds, so only the runs that use it import it
    import peft

logger = logging.getLogger(__name__)

# Every linear layer of the encoder; the pooler belongs to the head.
LORA_TARGETS = r".*encoder\.layer\.\d+\..*(query|key|value|dense)"
PEFT = "base_model.model."
"""Beginning of the names in a file of peft."""


def build(settings: FinetuneSettings, task: FinetuneTask) -> tuple[BertHead, nn.Module]:
    """Return BERT with its head, and what is trained: the same, or an adapter around it."""
    folder = base_folder(settings.base)
    config = with_dropout(BertConfig.read(folder), settings.dropout, settings.attention_dropout)
    if settings.r_drop and not _has_dropout(config, settings):
        raise ConfigError("r_drop compares two readings with different dropout, and all dropout is 0")
    tokenizer = task.tokenizer
    segments = 1 if task.spec.letter_shapes else tokenizer.segments  # more are added
    config.check_fits(tokenizer.highest_id() + 1, task.spec.max_tokens, segments)
    if task.architecture.removeprefix("Bert") in config.family.unknown_classes:
        logger.warning(
            "warning: transformers has no class of %s for %s: the result is read by bert-export and bert-finetune only",
            config.model_type,
            task.spec.task,
        )
    model = task.model(config)
    if not is_random(settings.base):
        load_into(model, folder)
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
        return spec if TASKS[spec.task].head is Head.EMBEDDING else unknown
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


def add_lora(model: BertHead, lora: LoraSettings) -> nn.Module:
    """Freeze the encoder and put trainable matrices beside its linear layers; the head is trained whole."""
    import peft

    has_shapes = model.config.type_vocab_size == SHAPES  # and a table that is not the base's
    segments = ["token_type_embeddings"] if has_shapes else []
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=LORA_TARGETS,
        modules_to_save=[*model.head_modules, *segments],
    )
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def is_adapted(model: nn.Module) -> bool:
    """Tell whether a model is what `add_lora` returns."""
    return hasattr(model, "peft_config")


def save(
    folder: Path, model: BertHead, trained: nn.Module, settings: FinetuneSettings, task: FinetuneTask
) -> None:
    """Write a checkpoint folder aside and rename it into place: an adapter, or the whole model."""
    with atomic_dir(folder) as aside:
        if is_adapted(trained):
            save_adapter(trained, aside, settings.base, model.config, task.architecture)
        else:
            save_whole(aside, model, task)
        task.spec.write(aside)


def save_whole(folder: Path, model: BertHead, task: FinetuneTask) -> None:
    """Write all weights with the tokenizer, as `transformers` loads them, embeddings for sentence-transformers too."""
    shape, tokenizer = model.config, task.tokenizer
    ids = shape.family.special_ids(tokenizer.cls_id, tokenizer.sep_id)
    save_checkpoint(model, folder, task.architecture, {**label_maps(task.spec), **ids})
    tokenizer.save(folder, segments=shape.has_segments, max_tokens=shape.max_position_embeddings)
    if TASKS[task.spec.task].head is Head.EMBEDDING:
        sentence_transformers.write(folder, task.spec, shape.hidden_size)


def save_adapter(
    model: "peft.PeftModel", folder: Path, base: str, shape: BertConfig, architecture: str
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` as peft reads them beside the family's own class."""
    family = shape.family
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    file = folder / ADAPTER_CONFIG
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= named_base(base)
    if family.layer_names:
        config["target_modules"] = family.own_modules(family.linear_layers, architecture)
    # The same factor for every matrix: alpha over the rank.
    config["rank_pattern"] = {name: count * config["r"] for name, count in family.joined.items()}
    config["alpha_pattern"] = {name: count * config["lora_alpha"] for name, count in family.joined.items()}
    pooler = family.own_name("bert.pooler.dense", architecture).removeprefix(family.prefix).partition(".")[0]
    saved = [pooler if name == "pooler" else name for name in config["modules_to_save"] or ()]
    config["modules_to_save"] = list(dict.fromkeys(saved))
    joined = family.join_factors(load_file(folder / ADAPTER_WEIGHTS), shape.num_attention_heads)
    # The class of embeddings is the bare body, whose own names have no prefix.
    prefix = family.prefix if architecture == "BertModel" else ""
    weights = _renamed(joined, lambda name: family.own_name(name, architecture).removeprefix(prefix))
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def named_base(base: str) -> dict[str, str]:
    """Return what `adapter_config.json` says of a base: its name, and the commit of a model of the hub."""
    if hub_model := origin(base_folder(base)):
        return {"base_model_name_or_path": hub_model["repo"], "revision": hub_model["commit"]}
    return {"base_model_name_or_path": base}


def read_adapter(folder: Path, shape: BertConfig) -> dict[str, Tensor]:
    """Read `adapter_model.safetensors`, with the names that peft gives the modules of BertHead."""
    weights = _renamed(load_file(folder / ADAPTER_WEIGHTS), shape.family.bert_name)
    return shape.family.split_factors(weights, shape.num_attention_heads)


def _renamed(weights: Mapping[str, Tensor], name_of: Callable[[str], str]) -> dict[str, Tensor]:
    return {f"{PEFT}{name_of(name.removeprefix(PEFT))}": tensor for name, tensor in weights.items()}


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
    else:
        load_into(model, folder)
