"""The difference that training makes to a base, as a LoRA adapter in peft's files."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert.bodies.body import EMBEDDING, POSITIONS, SEGMENTS
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from bert.errors import CheckpointError
from training.finetuning.adapter import PEFT, write_adapter

Halves = dict[str, NDArray[np.float16]]
_LAYER = re.compile(r"^.*\.\d+\.")
"""Beginning of a module's name, up to the number of its layer."""


class Delta:
    """The difference of trained weights to those of their base, in float16.

    The encoder's linear layers and the word embedding are factored (the best product of two matrices of that rank);
    whatever else changed is kept whole.
    """

    def __init__(
        self, base: Weights, trained: Weights, config: BertConfig, architecture: str, rank: int
    ) -> None:
        """Compute the difference; `architecture` is the name of BERT's class.

        Raises CheckpointError for a base of another shape.
        """
        self.config, self.architecture = config, architecture
        factored = [name for name in trained if self._is_linear(name)]
        # A family's table of tasks is added to that of segments: only a sum leaves it in place.
        tables = [EMBEDDING, *([SEGMENTS] if config.family.task_ids else [])]
        self.tables = [name for name in tables if not np.array_equal(base.get(name, 0), trained[name])]
        """Embeddings that are factored: those that differ from the base's."""
        factored += self.tables
        for name in factored:
            if name not in base or base[name].shape != trained[name].shape:
                shape = base[name].shape if name in base else "none"
                raise CheckpointError(f"{name} has shape {trained[name].shape}, and in the base {shape}")
        self.rank = min(rank, max(min(trained[name].shape) for name in factored))
        self.kept: dict[str, tuple[float, float]] = {}
        """Sums of squares for each factored tensor: of the product, and of the whole difference."""
        factors: dict[str, Any] = {}
        for name in factored:
            difference, module = trained[name] - base[name], name.removesuffix(".weight")
            if name in self.tables:
                names, difference = ("lora_embedding_A", "lora_embedding_B"), difference.T
            else:
                names = ("lora_A.weight", "lora_B.weight")
            *pair, self.kept[name] = factorize(difference, self.rank)
            factors |= {f"{module}.{end}": factor for end, factor in zip(names, pair, strict=True)}
        self.factors = config.family.join_factors(factors, config.num_attention_heads)
        self.replaced = self._replaced(base, trained, factored)

    def write(self, folder: Path, base: str) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors` as peft reads them beside the family's own class."""
        family = self.config.family
        targets = family.own_modules(family.linear_layers, self.architecture)
        targets += [self._own(name).split(".")[-2] for name in self.tables]
        factors = {self._own(name): factor for name, factor in self.factors.items()}
        layers = {name.partition(".lora_")[0] for name in factors}
        saved: dict[str, None] = {}
        weights = {f"{PEFT}{name}": factor.astype(np.float16) for name, factor in factors.items()}
        for name, tensor in self.replaced.items():
            module, _, kind = name.rpartition(".")
            if module in layers:
                name = f"{module}.base_layer.{kind}"
            elif kind in ("weight", "bias"):
                saved[_LAYER.sub("", module)] = None
            weights[f"{PEFT}{name}"] = tensor
        config = {
            "peft_type": "LORA",
            "inference_mode": True,
            "r": self.rank,
            "lora_alpha": self.rank,  # a scale of 1
            "bias": "all",
            "target_modules": targets,
            "modules_to_save": list(saved),
        }
        # A factor may be a transposed view, whose order astype keeps.
        tensors = {name: torch.from_numpy(np.ascontiguousarray(tensor)) for name, tensor in weights.items()}
        write_adapter(folder, config, tensors, family, base)

    def kept_by_part(self) -> dict[str, float]:
        """Return the share of the squares that the rank keeps, 0 to 1: of the words and of each layer."""
        sums: dict[str, list[tuple[float, float]]] = {}
        for name, pair in self.kept.items():
            found = re.search(r"layer\.\d+", name)
            sums.setdefault(found[0] if found else "words", []).append(pair)
        kept = {part: np.sum(pairs, axis=0) for part, pairs in sums.items()}
        return {part: float(some / all_) if all_ else 1.0 for part, (some, all_) in kept.items()}

    def _is_linear(self, name: str) -> bool:
        part = _LAYER.sub("", name).removesuffix(".weight")
        return name.startswith("bert.encoder.layer.") and part in self.config.family.linear_layers

    def _own(self, name: str) -> str:
        return self.config.family.own_name(name, self.architecture)

    def _replaced(self, base: Weights, trained: Weights, factored: list[str]) -> Halves:
        """Return the tensors of each module that changed, without the factored ones, by the family's names."""
        before, after = (
            self.config.family.own_weights(weights, self.architecture, asdict(self.config))
            for weights in (
                {name: base[name] for name in trained if name in base},
                trained | {name: base[name] for name in factored},
            )
        )
        changed = {
            name.rpartition(".")[0]
            for name, tensor in after.items()
            if name not in before or not np.array_equal(before[name], tensor)
        }
        if not self.config.has_segments and self._own(POSITIONS).rpartition(".")[0] in changed:
            # Positions have the one segment's vector in them: its own table becomes zero.
            changed.add(self._own(SEGMENTS).rpartition(".")[0])
        left_out = {self._own(name) for name in factored}
        return {
            name: tensor.astype(np.float16)
            for name, tensor in after.items()
            if name.rpartition(".")[0] in changed and name not in left_out
        }


def factorize(
    difference: NDArray[np.float32], rank: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], tuple[float, float]]:
    """Return A (rank, in) and B (out, rank), whose product B @ A is the nearest to a difference (out, in).

    Their columns are equally long, for float16. Also returned are the sums of squares, of the product and of all.
    The singular vectors come from the smaller of the two products of the difference with itself.
    """
    is_wide = difference.shape[0] < difference.shape[1]
    tall = (difference.T if is_wide else difference).astype(np.float64)  # (M, N), M >= N
    squares, vectors = np.linalg.eigh(tall.T @ tall)  # ascending
    squares, vectors = squares.clip(0.0)[::-1], vectors[:, ::-1]
    best = min(rank, len(squares))
    lengths = squares[:best] ** 0.25  # roots of the singular values
    left, right = np.zeros((len(tall), rank)), np.zeros((len(vectors), rank))
    right[:, :best] = vectors[:, :best] * lengths
    left[:, :best] = tall @ (vectors[:, :best] / np.where(lengths > 0, lengths, 1.0))
    b, a = (right, left.T) if is_wide else (left, right.T)
    sums = float(squares[:best].sum()), float(squares.sum())
    return a.astype(np.float32), b.astype(np.float32), sums
