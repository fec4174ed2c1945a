"""What a pretraining run needs to go on with the very next step: weights, optimiser, place in the data.

No generator's state is in it: each step seeds its own, from the run's seed, the step and the process.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from training.core.checkpoints import check_same_run
from training.pretraining.examples.stream import START, Cursor
from training.pretraining.settings import with_newer_settings

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all starts."""
    phase: int = 0
    cursor: Cursor = START


def gather_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by parameter name, whole and on the CPU; every process must call it."""
    return {name: _whole(parameter) for name, parameter in model.named_parameters()}


def gather_optimizer(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state by parameter name, whole and on the CPU; every process must call it."""
    return {
        f"{name}|{key}": _whole(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def write(
    folder: Path,
    weights: dict[str, Tensor],
    states: dict[str, Tensor],
    progress: Progress,
    fingerprint: dict[str, Any],
) -> None:
    """Write the files of a checkpoint."""
    save_file(weights, folder / WEIGHTS)
    save_file(states, folder / OPTIMIZER)
    content = {"progress": asdict(progress), "settings": fingerprint}
    (folder / STATE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read(folder: Path, model: nn.Module, optimizer: Optimizer, fingerprint: dict[str, Any]) -> Progress:
    """Fill model and optimiser from a checkpoint. Raises TrainingError where it is of a run with other settings."""
    content = json.loads((folder / STATE).read_text(encoding="utf-8"))
    check_same_run(folder, with_newer_settings(content["settings"]), fingerprint)
    weights, states = load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_like(weights[name], parameter))
            keys = [key for key in states if key.rpartition("|")[0] == name]
            optimizer.state[parameter] = {
                key.rpartition("|")[2]: _state_like(states[key], parameter) for key in keys
            }
    progress = content["progress"]
    return Progress(**{**progress, "cursor": Cursor(**progress["cursor"])})


def _whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().contiguous().clone()


def _like(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor placed as the parameter is: on its device, in its parts."""
    moved = whole.to(parameter.device)
    if isinstance(parameter, DTensor):
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    return moved


def _state_like(whole: Tensor, parameter: Tensor) -> Tensor:
    # AdamW's step count is a number: it is not spread as the moments are.
    return whole.to(parameter.device) if whole.dim() == 0 else _like(whole, parameter)
