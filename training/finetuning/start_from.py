"""Weights of an earlier run of the same task, as the start of another."""

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from torch import Tensor, nn

from bert.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertHead
from bert.tasks.spec import TaskSpec
from training.finetuning.adapter import is_adapted, read_adapter

if TYPE_CHECKING:
    import peft


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
