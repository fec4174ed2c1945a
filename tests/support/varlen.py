"""A slow obvious version of torch's attention over texts of different lengths, which itself needs a GPU."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bert.nn import attention

CALLS: list[dict[str, object]] = []
"""Options of each call, for tests that count them."""


def varlen_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Attend inside each stretch of (tokens, A, D), within the window; check what the kernel takes for granted."""
    borders, lengths = cu_seq_q.tolist(), cu_seq_q.diff()
    assert cu_seq_q.dtype == torch.int32 and torch.equal(cu_seq_q, cu_seq_k)
    assert borders[0] == 0 and borders[-1] == len(query) == len(key) == len(value)
    assert bool((lengths > 0).all()) and max_q == max_k >= int(lengths.max())
    assert all(each.stride(-1) == 1 and each.dim() == 3 for each in (query, key, value))
    CALLS.append({"window_size": window_size, "stretches": len(lengths)})
    before, after = window_size
    found = []
    for start, stop in pairwise(borders):
        q, k, v = (each[start:stop].transpose(0, 1) for each in (query, key, value))  # (A, tokens, D)
        distance = torch.arange(stop - start) - torch.arange(stop - start)[:, None]
        seen = torch.ones_like(distance, dtype=torch.bool)
        if before >= 0:
            seen &= distance >= -before
        if after >= 0:
            seen &= distance <= after
        found.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1))
    return torch.cat(found)


def take_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the kernel as on a GPU in half precision, whatever the device."""
    assert attention.load_kernel()
    monkeypatch.setattr(attention, "knows_texts", lambda _, config, __: not config.body.has_score_terms)


def with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the kernel, with the slow version in its place."""
    CALLS.clear()
    take_the_kernel(monkeypatch)
    monkeypatch.setattr(attention, "varlen_attn", varlen_reference)
