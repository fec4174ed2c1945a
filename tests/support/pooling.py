"""Poolings and dense layers as sentence-transformers has them, in torch: what exported embeddings are compared with."""

from collections.abc import Sequence

import torch
from torch import Tensor


# Pooling.forward of sentence-transformers 6.2: a padded batch, one vector after the other.
def pooled(tokens: Tensor, mask: Tensor, modes: Sequence[str]) -> Tensor:
    """Pool tokens (B, T, H) with a mask (B, T) of ones and zeros; (B, H * number of modes)."""
    expanded = mask.unsqueeze(-1).expand(tokens.size()).to(tokens.dtype)
    vectors = []
    for mode in modes:
        if mode == "cls":
            vectors.append(tokens[:, 0])
        elif mode == "max":
            vectors.append(tokens.masked_fill(expanded == 0, -1e9).max(1).values)
        elif mode in ("mean", "mean_sqrt_len_tokens"):
            length = expanded.sum(1).clamp(min=1e-9)
            vectors.append((tokens * expanded).sum(1) / (length if mode == "mean" else length.sqrt()))
        elif mode == "weightedmean":
            places = torch.arange(1, tokens.shape[1] + 1, dtype=tokens.dtype)[None, :, None]
            weights = places * expanded
            vectors.append((tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9))
        else:
            last = mask.shape[1] - mask.flip(1).argmax(1) - 1
            vectors.append(tokens[torch.arange(len(tokens)), last])
    return torch.cat(vectors, 1)


def embedded(
    tokens: Tensor,
    mask: Tensor,
    modes: Sequence[str],
    dense: Sequence[tuple[torch.nn.Linear, str]] = (),
    *,
    normalize: bool,
) -> Tensor:
    """Pool, pass dense layers with "tanh" or "identity", and scale to length 1 where asked."""
    x = pooled(tokens, mask, modes)
    for linear, activation in dense:
        x = torch.tanh(linear(x)) if activation == "tanh" else linear(x)
    return torch.nn.functional.normalize(x) if normalize else x
