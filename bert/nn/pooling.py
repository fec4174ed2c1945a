"""Poolings of the tokens' vectors to one of the text. B texts, T tokens, H width."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def pool(hidden: Tensor, mask: Tensor | None, poolings: Sequence[str]) -> Tensor:
    """Return the vectors of hidden (B, T, H) by each of the poolings, side by side: (B, H * number).

    The mask (B, T) is 1 at tokens and 0 at padding, which follows them; None is all tokens.
    """
    if mask is None:
        mask = torch.ones(hidden.shape[:2], device=hidden.device)
    weight = mask.to(hidden.dtype)[..., None]  # (B, T, 1)
    vectors = [_POOLINGS[name](hidden, weight) for name in poolings]
    return torch.cat(vectors, dim=-1) if len(vectors) > 1 else vectors[0]


def _max(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden.masked_fill(weight == 0, float("-inf")).amax(1)


def _weighted_mean(hidden: Tensor, weight: Tensor) -> Tensor:
    nth = weight.float().cumsum(1).to(weight.dtype) * weight
    return (hidden * nth).sum(1) / nth.sum(1)


def _last_token(hidden: Tensor, weight: Tensor) -> Tensor:
    last = weight[..., 0].sum(1).long() - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden, weight: hidden[:, 0],
    "max": _max,
    "mean": lambda hidden, weight: (hidden * weight).sum(1) / weight.sum(1),
    "mean_sqrt_len_tokens": lambda hidden, weight: (hidden * weight).sum(1) / weight.sum(1).sqrt(),
    "weightedmean": _weighted_mean,
    "lasttoken": _last_token,
}
