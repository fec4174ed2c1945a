"""Small checkpoints as the hub has them: without `task.json`, as sentence-transformers or transformers writes them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert.checkpoint.description import Stated
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.tasks.spec import TaskSpec
from tests.support.checkpoints import SPECS, write_checkpoint

TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
MODULES = ["Transformer", "Pooling", "Normalize"]
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write_embedder(folder: Path, modules: list[str] = MODULES, **files: Any) -> Any:
    """Write a folder as sentence-transformers does; `files` by name without ending, 1_Pooling as `pooling`."""
    model = write_checkpoint(folder, SPECS["similarity"])
    as_published(folder)
    listed = [
        {"idx": n, "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(modules)
    ]
    (folder / "1_Pooling").mkdir()
    contents = {"modules": listed, "1_Pooling/config": files.pop("pooling", MEAN), **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def as_published(folder: Path) -> None:
    """Make a checkpoint of ours one of the hub: no `task.json`, and its `vocab.txt` says its case."""
    (folder / "task.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")


def read(folder: Path, **stated: Any) -> Checkpoint:
    """Read a checkpoint, with what the user says of it."""
    return read_checkpoint(folder, stated=Stated(**stated))


def classifier(folder: Path, labels: list[str], **values: Any) -> Path:
    """Write a classifier as the hub has them."""
    spec = TaskSpec("classification", tuple(labels), max_tokens=128)
    write_checkpoint(folder, spec)
    as_published(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": {str(n): label for n, label in enumerate(labels)}, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_dense(
    folder: Path, width: int, out: int, *, pickled: bool = False, **values: Any
) -> torch.nn.Linear:
    """Write a Dense layer as sentence-transformers does; return it."""
    torch.manual_seed(2)
    linear = torch.nn.Linear(width, out, bias=values.get("bias", True))
    folder.mkdir()
    config = {"in_features": width, "out_features": out, "bias": True, "activation_function": TANH, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = {f"linear.{name}": tensor.detach() for name, tensor in linear.named_parameters()}
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors")
    return linear
