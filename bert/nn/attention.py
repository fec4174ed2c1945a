"""Attention of tokens to tokens, and the choice of its form.

B rows, T tokens, H width, A heads, D head size, S stretches of tokens: texts, and what pads a row after them.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert.config import BertConfig

varlen_attn: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
"""torch's kernel of attention inside texts, once `load_kernel` has imported it."""
EVERYWHERE = (-1, -1)


@dataclass(frozen=True, slots=True, eq=False)
class TextRows:
    """Texts side by side in rows, in place of a mask: attention stays inside each."""

    borders: Tensor
    """(S + 1,) int32: first token of each stretch, counted through all rows, and B * T."""
    owners: Tensor | None = None
    """(B, T) number of the token's text in its row, -1 at padding; None where each row holds a single text."""
    real: Tensor | None = None
    """(B, T), False at padding; None where there is none."""
    window: tuple[int, int] = EVERYWHERE
    """Number of tokens before a token, and after it, that it sees; -1 for all."""

    @classmethod
    def full(cls, hidden: Tensor) -> "TextRows":
        """Describe hidden states (B, T, H) of one text a row, without padding."""
        rows, tokens = hidden.shape[:2]
        borders = torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device=hidden.device)
        return cls(borders)

    def mask(self, tokens: int) -> Tensor | None:
        """Return True where a query may look at a key, (B or 1, T or 1, T); None for everywhere.

        Computed on the device of the rows: to send it there would cost more.
        """
        (before, after), seen = self.window, None
        if self.owners is not None:
            seen = self.owners[:, :, None] == self.owners[:, None, :]
        elif self.real is not None and after != 0:  # padding stands to the right
            seen = self.real[:, None]
        if self.window == EVERYWHERE:
            return seen
        places = torch.arange(tokens, device=self.borders.device)
        distance = places - places[:, None]  # from query to key
        near = torch.ones_like(distance, dtype=torch.bool)
        if before >= 0:
            near &= distance >= -before
        if after >= 0:
            near &= distance <= after
        return near[None] if seen is None else seen & near


Mask = Tensor | TextRows | None
"""Input of a model: 1 where there is a token, (B, T), or where a query sees a key, (B, T, T); or rows of texts."""
Seen = Tensor | TextRows | None
"""Input of every layer's attention: a bias that broadcasts to (B, A, T, T), or rows of texts for a kernel."""


class BertSelfAttention(nn.Module):
    """Multi-head attention of every token to every token that is not masked."""

    def __init__(self, config: BertConfig) -> None:
        """Shape the three projections, H to H each."""
        super().__init__()
        self.num_heads, self.dropout_prob = config.num_attention_heads, config.attention_probs_dropout_prob
        width, bias = config.hidden_size, config.body.has_biases
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)

    def _heads(self, projected: Tensor) -> Tensor:
        batch, tokens, width = projected.shape
        split = projected.view(batch, tokens, self.num_heads, width // self.num_heads)  # (B, T, A, D)
        return split.transpose(1, 2)  # (B, A, T, D)

    def forward(self, hidden: Tensor, seen: Seen) -> Tensor:
        """Attend within hidden (B, T, H)."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        dropout = self.dropout_prob if self.training else 0.0
        context = attend(q, k, v, seen, dropout)
        return context.transpose(1, 2).flatten(2)  # (B, T, H)


def visible(mask: Mask, hidden: Tensor, config: BertConfig, training: bool) -> Seen:
    """Turn a mask into the input of attention: rows of texts where a kernel attends inside them, else a bias."""
    if isinstance(mask, TextRows):
        if knows_texts(hidden, config, training):
            return mask
        mask = mask.mask(hidden.shape[1])
    return attention_bias(mask, hidden)


def knows_texts(hidden: Tensor, config: BertConfig, training: bool) -> bool:
    """Tell whether a kernel attends inside each text of a row: FlashAttention, which takes neither biases nor dropout."""
    drops = training and config.attention_probs_dropout_prob > 0
    return (
        hidden.device.type == "cuda"
        and not config.body.has_score_terms
        and not drops
        and score_dtype(hidden) in (torch.float16, torch.bfloat16)
        and config.head_size % 8 == 0
        and config.head_size <= 256
        and torch.cuda.get_device_capability(hidden.device) >= (8, 0)
        and load_kernel()
    )


def load_kernel() -> bool:
    """Import torch's kernel, which takes most of a second; return whether it has windows, as it does since torch 2.11."""
    global varlen_attn
    if varlen_attn is None:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:  # torch before 2.10
            return False
    return varlen_attn is not None and "window_size" in inspect.signature(varlen_attn).parameters


def attention_bias(attention_mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Return what a mask by key (B, T) or by pairs (B, T, T) adds to attention's scores: 0 where seen, else -inf almost.

    It broadcasts to (B, A, T, T) and has the type that queries will have. Made once, where attention would make it
    from the mask in each layer.
    """
    if attention_mask is None:
        return None
    dtype = score_dtype(hidden)
    seen = attention_mask[:, None, None, :] if attention_mask.dim() == 2 else attention_mask[:, None]
    bias = torch.zeros(seen.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill_(~seen.bool(), torch.finfo(dtype).min)


def score_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type that attention's scores of hidden states will have."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Seen, dropout: float, scale: float | None = None) -> Tensor:
    """Attend, (B, A, T, D) each, by the form that is fastest; `scale` is that of products, by default D ** -0.5."""
    if isinstance(seen, TextRows):
        return attend_in_texts(q, k, v, seen, scale)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad:
        return plain_attention(q, k, v, seen, dropout, scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, scale=scale)


def attend_in_texts(q: Tensor, k: Tensor, v: Tensor, rows: TextRows, scale: float | None) -> Tensor:
    """Attend inside each stretch of the rows, (B, A, T, D) each; no mask is made, and no work done across borders."""
    batch, _, tokens, _ = q.shape
    q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (q, k, v))  # (B * T, A, D)
    # No text is longer than its row; how long the longest is would have to be asked of the device.
    assert varlen_attn is not None, "load_kernel comes first"
    context = varlen_attn(
        q, k, v, rows.borders, rows.borders, tokens, tokens, scale=scale, window_size=rows.window
    )
    assert isinstance(context, Tensor)
    return context.view(batch, tokens, *context.shape[1:]).transpose(1, 2)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, scale: float | None = None
) -> Tensor:
    """Attend by plain products, (B, A, T, D) each: training in bf16 on a CPU is faster so than by torch's kernels.

    Whole layers of 384, forward and backward: 1.3 times the flash kernel at 128 tokens and 1.05 at 384; 1.01 to 1.06
    times torch's own plain products, which look for rows that see nothing. In float32 the flash kernel is as fast.
    """
    scores = (q * (scale or q.shape[-1] ** -0.5)) @ k.transpose(-1, -2)  # (B, A, T, T)
    if bias is not None:
        scores = scores + bias
    return F.dropout(scores.softmax(-1), dropout) @ v
