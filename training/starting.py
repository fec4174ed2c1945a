"""Starting from what an earlier run of the same task trained."""

import json
from pathlib import Path

import peft
from torch import nn

from bert.errors import CheckpointError, ConfigError
from bert.lora import ADAPTER_CONFIG
from bert.nn.heads import BertHead
from bert.tasks.spec import TaskSpec
from training import model as models


def start_from(folder: Path, spec: TaskSpec, model: BertHead, trained: nn.Module) -> None:
    """Fill the trained weights from `folder`, which bert-finetune wrote.

    Raises ConfigError where that run had another task, other labels, another base or another kind of adapter,
    and CheckpointError where it cannot be read.
    """
    earlier = TaskSpec.read(folder)
    for name in ("task", "problem", "labels"):
        if getattr(earlier, name) != getattr(spec, name):
            raise ConfigError(
                f"start_from {folder} has {name} {getattr(earlier, name)!r}, and this run {getattr(spec, name)!r}"
            )
    if isinstance(trained, peft.PeftModel):
        _check_adapter(folder, earlier, spec, trained)
    elif (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"start_from {folder} holds an adapter: set lora as that run did")
    models.restore(folder, model, trained)


def _check_adapter(folder: Path, earlier: TaskSpec, spec: TaskSpec, trained: peft.PeftModel) -> None:
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        raise ConfigError(f"start_from {folder} holds no adapter, and lora is set: leave lora out")
    if earlier.base.get("sha256") != spec.base.get("sha256"):
        raise ConfigError(
            f"start_from {folder} belongs to the base {earlier.base.get('name')!r} with other weights than "
            f"{spec.base.get('name')!r}"
        )
    try:
        theirs = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    ours = trained.peft_config["default"]
    for name in ("r", "lora_alpha", "use_rslora"):
        if theirs.get(name) != getattr(ours, name):
            raise ConfigError(
                f"start_from {folder} has {name} {theirs.get(name)!r}, and this run {getattr(ours, name)!r}"
            )
