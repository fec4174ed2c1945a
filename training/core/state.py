"""A run's state on disk: enough to go on with the very next batch. Tensors as safetensors, the rest as JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from training.core.checkpoints import check_same_run
from training.core.model import trainable
from training.settings import with_newer_settings


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    """Batches of the epoch that are done."""
    tokens: int = 0
    best_score: float | None = None
    best_step: int = 0
    worse_evaluations: int = 0
    epochs: float = 3.0
    """Passes that the run was planned for; saves that lack it were planned for this many unless told otherwise."""
    evaluation_due: bool = False
    """Whether the step's evaluation is still to come: a save goes before it."""
    history: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """Those that the run was started and gone on with, without repetitions."""


def save_state(
    folder: Path, model: nn.Module, optimizer: AdamW, progress: Progress, fingerprint: dict[str, Any]
) -> None:
    """Write the state into an empty folder."""
    tensors: dict[str, Tensor] = {f"weight.{n}": p.detach() for n, p in trainable(model).items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, folder / "state.safetensors")
    content = {"progress": asdict(progress), "settings": fingerprint}
    (folder / "progress.json").write_text(json.dumps(content), encoding="utf-8")


def planned(folders: Iterable[Path]) -> dict[str, Any]:
    """Return `learning_rate` and `epochs` of the first save that can be read; nothing where none can."""
    for folder in folders:
        try:
            content = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
            rate = content["settings"]["learning_rate"]
            return {"learning_rate": rate, "epochs": Progress(**content["progress"]).epochs}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whether a save is whole is looked at when it is loaded
    return {}


def load_state(folder: Path, model: nn.Module, optimizer: AdamW, fingerprint: dict[str, Any]) -> Progress:
    """Fill model, optimiser and random generators from a saved state.

    Raises TrainingError where the state is of a run with other settings.
    """
    content = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
    check_same_run(folder, with_newer_settings(content["settings"]), fingerprint)
    tensors = load_file(folder / "state.safetensors")
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(tensors[f"weight.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    return Progress(**content["progress"])
