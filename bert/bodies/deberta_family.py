"""DeBERTa's checkpoints: versions 1 and 2; version 3 and mDeBERTa are 2 with other weights.

He et al. 2020 (arXiv 2006.03654) and 2021 (2111.09543). Version 1 has queries, keys and values in one matrix, head by
head. A heads, H width, D size of a head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert.bodies.body import EMBEDDING, POSITIONS, SEGMENTS
from bert.bodies.family import Family
from bert.errors import CheckpointError

DISCRIMINATOR = "mask_predictions."
"""Beginning of the names of a head that finds replaced pieces; the masked language model beside it was never trained."""
_ATTENTION = ".attention.self."
_PARTS = ("query", "key", "value")


@dataclass(frozen=True, slots=True, eq=False)
class Deberta(Family):
    """A version of DeBERTa."""

    def variant(self, values: Mapping[str, Any]) -> Family:
        """Return the family as a `config.json` has it: the newer head has names of its own."""
        if values.get("legacy") is False:
            return replace(self, head_names=self.head_names[1:])
        return self

    def own_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a `config.json` in DeBERTa's words."""
        kept = Family.own_config(self, values)
        if not values.get("has_segments", True):
            kept["type_vocab_size"] = 0
        return kept

    def _has_segments(self, config: Mapping[str, Any]) -> bool:
        return bool(config.get("type_vocab_size"))

    def bert_weights(self, weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a file's tensors under BERT's names; biases that version 1 lacks are zeros."""
        if any(name.startswith(DISCRIMINATOR) for name in weights):
            weights = {name: x for name, x in weights.items() if not name.startswith("lm_predictions.")}
        found = Family.bert_weights(self, weights, config)
        if config.get("position_biased_input") is False:
            found.pop(POSITIONS, None)  # some files have a table that nothing reads
        if EMBEDDING in found and not self._has_segments(config):
            found[SEGMENTS] = found[EMBEDDING][:2] - found[EMBEDDING][:2]
        return self.split_projections(found, config.get("num_attention_heads") or 12)

    def split_projections(self, weights: Mapping[str, Any], heads: int) -> dict[str, Any]:
        """Return version 1's tensors with queries, keys and values apart."""
        if not self.joined:
            return dict(weights)
        found = dict[str, Any]()
        for name, tensor in weights.items():
            before, _, part = name.partition(_ATTENTION)
            at = f"{before}{_ATTENTION}"
            if part == "in_proj.weight":
                if tensor.shape[0] % (3 * heads):
                    raise CheckpointError(
                        f"{name} has {tensor.shape[0]} rows, which {heads} heads cannot have"
                    )
                by_head = tensor.reshape(heads, 3, -1, tensor.shape[-1])
                for number, each in enumerate(_PARTS):
                    found[f"{at}{each}.weight"] = by_head[:, number].reshape(-1, tensor.shape[-1])
            elif part in ("q_bias", "v_bias"):
                found[f"{at}{'query' if part == 'q_bias' else 'value'}.bias"] = tensor
                found[f"{at}key.bias"] = tensor - tensor
            else:
                found[name] = tensor
                if part == "pos_key_proj.weight":
                    found[f"{at}pos_key_proj.bias"] = tensor[:, 0] - tensor[:, 0]
        return found

    def own_weights(
        self, weights: Mapping[str, Any], architecture: str, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the tensors of a BERT as DeBERTa's files have them."""
        joined = self._join_projections(weights, config) if self.joined else weights
        found = Family.own_weights(self, joined, architecture, config)
        if not config.get("has_segments", True):
            found.pop(self.own_name(SEGMENTS, architecture))
        return found

    def _join_projections(self, weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Undo `split_projections`."""
        found = dict[str, Any]()
        for name, tensor in weights.items():
            before, _, part = name.partition(_ATTENTION)
            at = f"{before}{_ATTENTION}"
            if part == "query.weight":
                parts_of_it = [weights[f"{at}{each}.weight"] for each in _PARTS]
                found[f"{at}in_proj.weight"] = _interleaved(parts_of_it, config["num_attention_heads"])
            elif part in ("query.bias", "value.bias"):
                found[f"{at}{part[0]}_bias"] = tensor
            elif part not in ("key.weight", "value.weight", "key.bias", "pos_key_proj.bias"):
                found[name] = tensor
        return found

    def own_modules(self, parts: Iterable[str], architecture: str) -> list[str]:
        """Return names of linear layers, within a layer, in DeBERTa's words; `parts` are BERT's."""
        apart = {f"attention.self.{each}" for each in _PARTS} if self.joined else set[str]()
        names = Family.own_modules(self, (part for part in parts if part not in apart), architecture)
        return [*(f"attention.self.{name}" for name in self.joined), *names]

    def split_factors(self, adapter: Mapping[str, Any], heads: int) -> dict[str, Any]:
        """Return an adapter's matrices for queries, keys and values apart, of those that `join_factors` made."""
        found = dict[str, Any]()
        for name, tensor in adapter.items():
            before, at, factor = name.partition(f"{_ATTENTION}in_proj.lora_")
            if not at:
                found[name] = tensor
                continue
            rank = len(adapter[f"{before}{at}A.weight"]) // len(_PARTS)
            for number, part in enumerate(_PARTS):
                its = slice(number * rank, (number + 1) * rank)
                if factor.startswith("A"):
                    apart = tensor[its]
                else:
                    by_head = tensor.reshape(heads, len(_PARTS), -1, tensor.shape[-1])
                    apart = by_head[:, number].reshape(-1, tensor.shape[-1])[:, its]
                found[f"{before}{_ATTENTION}{part}.lora_{factor}"] = apart
        return found

    def join_factors(self, adapter: Mapping[str, Any], heads: int) -> dict[str, Any]:
        """Return an adapter's matrices of queries, keys and values as those of one layer, of their ranks together."""
        found = dict[str, Any]()
        for name, tensor in adapter.items():
            before, at, factor = name.partition(f"{_ATTENTION}query.lora_")
            if at and self.joined:
                three = [adapter[f"{before}{_ATTENTION}{part}.lora_{factor}"] for part in _PARTS]
                joined = _stacked(three) if factor.startswith("A") else _block_diagonal(three, heads)
                found[f"{before}{_ATTENTION}in_proj.lora_{factor}"] = joined
            elif not self.joined or not any(f"{_ATTENTION}{part}.lora_" in name for part in _PARTS[1:]):
                found[name] = tensor
        return found


def _zeros(like: Any, rows: int, columns: int) -> Any:
    """Return zeros of numpy's or torch's kind."""
    none = like[[0] * rows][:, [0] * columns]
    return none - none


def _stacked(parts: Sequence[Any]) -> Any:
    """Return matrices below each other."""
    rows, columns = parts[0].shape
    out = _zeros(parts[0], len(parts) * rows, columns)
    for number, part in enumerate(parts):
        out[number * rows : (number + 1) * rows] = part
    return out


def _block_diagonal(parts: Sequence[Any], heads: int) -> Any:
    """Return matrices (H, r) as one (3H, 3r): rows by head, then by matrix; each matrix has columns of its own."""
    rows, rank = parts[0].shape
    wide = []
    for number, part in enumerate(parts):
        out = _zeros(part, rows, len(parts) * rank)
        out[:, number * rank : (number + 1) * rank] = part
        wide.append(out)
    return _interleaved(wide, heads)


def _interleaved(parts: Sequence[Any], heads: int) -> Any:
    """Return matrices (H, X) as one (3H, X), its rows ordered by head, then by matrix."""
    rows, width = parts[0].shape
    joined = parts[0][[0] * (len(parts) * rows)]  # a copy, of numpy's or torch's kind
    by_head = joined.reshape(heads, len(parts), -1, width)
    for number, part in enumerate(parts):
        by_head[:, number] = part.reshape(heads, -1, width)
    return joined
