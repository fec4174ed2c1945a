"""Mean of the weights of several checkpoints: a model soup (Wortsman et al. 2022, arXiv 2203.05482)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bert.checkpoint.tensor_names import needed_shapes
from bert.checkpoint.weights import Checkpoint, read_checkpoint
from bert.errors import CheckpointError
from bert.tasks.spec import TaskSpec

_MAY_DIFFER = ("scores", "counts", "data", "examples", "command", "null_threshold", "base")
"""Fields of `task.json` that change no weight's meaning; of the base only the weights' hash counts."""


def read_average(folders: Sequence[Path]) -> Checkpoint:
    """Return the checkpoints' mean, float32, with a description made of theirs.

    Thresholds are averaged too, and no scores are left. Raises CheckpointError where the checkpoints do not belong
    together or were not made by bert-finetune.
    """
    first = _read(folders[0])
    specs, mean = [first.spec], first.weights
    for count, folder in enumerate(folders[1:], start=2):
        other = _read(folder)
        _check_match(folders[0], first, folder, other)
        specs.append(other.spec)
        # A running mean, not a sum divided at the end: frozen weights stay equal to the base, bit for bit, and an
        # adapter made of the mean need not hold them.
        mean = {
            name: tensor + (other.weights[name] - tensor) / np.float32(count) for name, tensor in mean.items()
        }
    return replace(first, weights=mean, spec=_described(specs))


def _read(folder: Path) -> Checkpoint:
    """Read a checkpoint without the tensors that its task does not use."""
    if not (folder / "task.json").is_file():
        raise CheckpointError(
            f"{folder} has no task.json, which records the task: give folders that bert-finetune wrote"
        )
    found = read_checkpoint(folder)
    weights = {name: found.weights[name] for name, _ in needed_shapes(found.config, found.spec)}
    return replace(found, weights=weights)


def _check_match(first: Path, ours: Checkpoint, folder: Path, theirs: Checkpoint) -> None:
    bases = [checkpoint.spec.base.get("sha256") for checkpoint in (ours, theirs)]
    if None in bases:
        raise CheckpointError(
            f"{folder if bases[0] else first} records no base: weights that began at random cannot be averaged"
        )
    if bases[0] != bases[1]:
        raise CheckpointError(
            f"{first} and {folder} were trained from different bases ({_names(ours, theirs)})"
        )
    for what, left, right in (
        ("task.json", _comparable(ours.spec), _comparable(theirs.spec)),
        ("config.json", _shape(ours), _shape(theirs)),
    ):
        if differing := [key for key in left if left[key] != right[key]]:
            key = differing[0]
            raise CheckpointError(
                f"{first} and {folder} cannot be averaged: {key} of {what} is {left[key]!r} and {right[key]!r}"
            )


def _names(*checkpoints: Checkpoint) -> str:
    return ", ".join(str(checkpoint.spec.base.get("name")) for checkpoint in checkpoints)


def _comparable(spec: TaskSpec) -> dict[str, Any]:
    return {key: value for key, value in asdict(spec).items() if key not in _MAY_DIFFER}


def _shape(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the configuration without what only training reads."""
    values = asdict(checkpoint.config)
    return {key: value for key, value in values.items() if "dropout" not in key}


def _described(specs: Sequence[TaskSpec]) -> TaskSpec:
    """Describe the mean: commands and data of all, none of their scores."""
    commands = chain.from_iterable(spec.command.splitlines() for spec in specs)
    return replace(
        specs[0],
        scores={},
        counts={},
        null_threshold=float(np.mean([spec.null_threshold for spec in specs])),
        data=_joined([spec.data for spec in specs]),
        command="\n".join(dict.fromkeys(commands)),
    )


def _joined(data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the files of each part, each file once."""
    parts = dict.fromkeys(chain.from_iterable(data))
    files = {part: list(chain.from_iterable(each.get(part, ()) for each in data)) for part in parts}
    return {
        part: [file for i, file in enumerate(all_) if file not in all_[:i]] for part, all_ in files.items()
    }
