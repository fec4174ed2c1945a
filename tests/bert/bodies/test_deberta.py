"""Version 1's layer of queries, keys and values: adapters of BERT's three layers are adapters of it, and the reverse."""

from typing import Any

import numpy as np
import pytest
import torch

from bert.checkpoint import lora
from bert.errors import CheckpointError
from bert.families import FAMILIES

AT = "base_model.model.bert.encoder.layer.0.attention.self"
PARTS = ("query", "key", "value")
FAMILY = FAMILIES["deberta"]


def factors(width: int, rank: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return an adapter's matrices of queries, keys and values, and of one layer more."""
    drawn = np.random.default_rng(width + rank)
    shapes = {"A": (rank, width), "B": (width, rank)}
    layers = [f"{AT}.{part}" for part in PARTS] + [AT.replace(".self", ".output.dense")]
    return {
        f"{layer}.lora_{factor}.weight": drawn.normal(size=shape).astype(np.float32)
        for layer in layers
        for factor, shape in shapes.items()
    }


@pytest.mark.parametrize(("heads", "width", "rank"), [(12, 24, 8), (4, 32, 4), (1, 6, 1)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_adapter_is_the_same_for_the_joined_layer(kind: str, heads: int, width: int, rank: int) -> None:
    ours: dict[str, Any] = dict(factors(width, rank))
    if kind == "torch":
        ours = {name: torch.from_numpy(each) for name, each in ours.items()}
    joined = FAMILY.join_factors(ours, heads)
    assert len(joined) == 4
    product = joined[f"{AT}.in_proj.lora_B.weight"] @ joined[f"{AT}.in_proj.lora_A.weight"]
    apart = FAMILY.split_projections({f"{AT}.in_proj.weight": product}, heads)
    for part in PARTS:
        expected = ours[f"{AT}.{part}.lora_B.weight"] @ ours[f"{AT}.{part}.lora_A.weight"]
        np.testing.assert_allclose(np.asarray(apart[f"{AT}.{part}.weight"]), np.asarray(expected), atol=1e-5)
    again = FAMILY.split_factors(joined, heads)
    assert again.keys() == ours.keys()
    assert all(np.array_equal(np.asarray(again[name]), np.asarray(ours[name])) for name in ours)
    assert FAMILIES["deberta-v2"].join_factors(ours, heads) == ours


def test_an_adapter_of_peft_for_the_joined_layer_is_merged() -> None:
    drawn, heads, width, rank = np.random.default_rng(0), 4, 32, 3
    a, b = (drawn.normal(size=shape).astype(np.float32) for shape in ((rank, width), (3 * width, rank)))
    name = "base_model.model.deberta.encoder.layer.0.attention.self.in_proj"
    adapter = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    at = "bert.encoder.layer.0.attention.self"
    base = {f"{at}.{part}.weight": drawn.normal(size=(width, width)).astype(np.float32) for part in PARTS}
    config = {"lora_alpha": 6, "peft_type": "LORA"}
    merged = lora.merge(base, adapter, config, FAMILY, heads)
    by_head = (2 * b @ a).reshape(heads, 3, width // heads, width)
    for number, part in enumerate(PARTS):
        expected = base[f"{at}.{part}.weight"] + by_head[:, number].reshape(width, width)
        np.testing.assert_allclose(merged[f"{at}.{part}.weight"], expected, atol=1e-5)
    with pytest.raises(CheckpointError, match="the base has none"):
        lora.merge({}, adapter, config, FAMILY, heads)


def test_rows_that_no_heads_can_have_are_refused() -> None:
    with pytest.raises(CheckpointError, match="has 7 rows, which 2 heads cannot have"):
        FAMILY.split_projections({f"{AT}.in_proj.weight": np.ones((7, 4), np.float32)}, 2)
