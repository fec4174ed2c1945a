"""A run's state on disk: enough to go on with the very next step. Tensors as safetensors, the rest as JSON."""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from training.engine.checkpoints import check_same_run
from training.engine.distributed import is_spread
from training.engine.optim import trainable

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
GENERATORS = "generators.safetensors"
"""State of the random generators; it matters to runs that draw from one stream and do not seed each step."""


@dataclass
class RunState:
    """State of a run between two steps."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Time spent in steps, over all starts."""
    position: dict[str, Any] = field(default_factory=dict)
    """Place where the next batch begins, as the run's source of batches describes it; empty at the start."""
    evaluation_due: bool = False
    """True while the step's evaluation is still to come: a save goes before it."""
    best_score: float | None = None
    best_loss: float | None = None
    """Loss on held-out data at the best step; None before the first evaluation."""
    best_step: int = 0
    worse_evaluations: int = 0
    """Evaluations in a row that did not raise the best score; a tie that replaces the best checkpoint counts too."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    epochs: float = 3.0
    """Passes that a fine-tuning was planned for."""
    commands: list[str] = field(default_factory=list)
    """Commands that started and resumed the run, without repetitions."""


def gather_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Return all weights by parameter name, whole and on the CPU, to those who `keep` them; every process must call it."""
    wholes = ((name, _whole(parameter)) for name, parameter in model.named_parameters())
    return {name: whole for name, whole in wholes if keep}


def fill_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill a model, whole or in parts, from whole weights by parameter name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_like(weights[name], parameter))


def gather_state(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return trained weights and the optimiser's tensors of a whole model, on the CPU."""
    trained = trainable(model)
    weights = {name: _whole(parameter) for name, parameter in trained.items()}
    moments = {
        f"{name}|{key}": _whole(value)
        for name, parameter in trained.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    return weights, moments


def parts_of_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return trained weights and the optimiser's tensors as this process has them, under the names of `gather_state`."""
    trained = trainable(model)
    parts: dict[str, Tensor] = {name: parameter.detach() for name, parameter in trained.items()}
    for name, parameter in trained.items():
        parts |= {f"{name}|{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return parts


def describe(state: RunState, fingerprint: Mapping[str, Any]) -> str:
    """Return the content of `state.json`: all that is no tensor."""
    return json.dumps({"progress": asdict(state), "settings": fingerprint}, indent=1)


def write_state(
    folder: Path,
    weights: dict[str, Tensor],
    moments: dict[str, Tensor],
    state: RunState,
    fingerprint: Mapping[str, Any],
) -> None:
    """Write the files of a checkpoint into an empty folder."""
    save_file(weights, folder / WEIGHTS)
    save_file(moments, folder / OPTIMIZER)
    generators = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators["cuda"] = torch.cuda.get_rng_state()
    save_file(generators, folder / GENERATORS)
    (folder / STATE).write_text(describe(state, fingerprint), encoding="utf-8")


def read_state(
    folder: Path, model: nn.Module, optimizer: Optimizer, fingerprint: Mapping[str, Any]
) -> RunState:
    """Fill model, optimiser and random generators from a checkpoint.

    One that was written in parts is read by any number of processes; it has no generators, as its run seeds each step.
    Raises TrainingError where the checkpoint is of a run with other settings.
    """
    content = json.loads((folder / STATE).read_text(encoding="utf-8"))
    check_same_run(folder, content["settings"], fingerprint)
    read = _read_whole if (folder / WEIGHTS).is_file() else _read_parts
    read(folder, model, optimizer)
    return RunState(**content["progress"])


def _read_whole(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    weights, moments = load_file(folder / WEIGHTS), load_file(folder / OPTIMIZER)
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(_like(weights[name], parameter))
            keys = [key for key in moments if key.rpartition("|")[0] == name]
            optimizer.state[parameter] = {
                key.rpartition("|")[2]: _moment_like(moments[key], parameter) for key in keys
            }
    generators = load_file(folder / GENERATORS)
    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators["cuda"])


def _read_parts(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # takes a second
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    for name, parameter in trainable(model).items():
        keys = [key for key in saved if key.rpartition("|")[0] == name]
        optimizer.state[parameter] = {
            key.rpartition("|")[2]: _empty(saved[key].size, parameter)  # type: ignore[union-attr]
            for key in keys
        }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is")  # one process alone
        load(parts_of_state(model, optimizer), storage_reader=reader)


def _empty(size: torch.Size, parameter: Tensor) -> Tensor:
    """Return room for a tensor of an optimiser: a moment is in parts as its parameter is, AdamW's step count is not."""
    if size == parameter.shape:
        return torch.zeros_like(parameter, requires_grad=False)
    return torch.zeros(size, device=parameter.device)


def planned(folders: Iterable[Path]) -> dict[str, Any]:
    """Return `learning_rate` and `epochs` of the first save that can be read; nothing where none can."""
    for folder in folders:
        try:
            content = json.loads((folder / STATE).read_text(encoding="utf-8"))
            rate = content["settings"]["learning_rate"]
            return {"learning_rate": rate, "epochs": content["progress"]["epochs"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # whether a save is whole is checked when it is loaded
    return {}


def _whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if is_spread(tensor) else tensor
    return full.detach().cpu().contiguous().clone()


def _like(whole: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor placed as the parameter is: on its device, in its parts."""
    moved = whole.to(parameter.device)
    if is_spread(parameter):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    return moved


def _moment_like(whole: Tensor, parameter: Tensor) -> Tensor:
    # AdamW's step count is a number: it is not spread as the moments are.
    return whole.to(parameter.device) if whole.dim() == 0 else _like(whole, parameter)
