"""Masked examples become tensors: side by side in full rows, or padded one to a row.

N examples, R rows of T tokens, M masked positions. A flat index counts through all rows: row * T + position.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert.errors import ConfigError
from bert.nn.attention import TextRows
from bert.nn.losses import IGNORED
from bert.nn.pretraining_heads import SPAN_TARGETS
from training.pretraining.examples.base import MaskedExample

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PretrainBatch:
    """Input of an objective. Targets are counted on the host: asking a GPU would stall it."""

    input_ids: Tensor
    """(R, T), after masking"""
    segment_ids: Tensor
    """(R, T)"""
    position_ids: Tensor
    """(R, T), from 0 in each example"""
    original_ids: Tensor
    """(R, T), before masking"""
    real: Tensor
    """(R, T) bool, False at padding"""
    owners: Tensor | None
    """(R, T) index of the token's example in its row, -1 at padding; None where each row holds a single one"""
    stretches: Tensor
    """(S + 1,) int32 flat indices: first token of each example and of the padding after them in a row, and R * T"""
    masked: Tensor
    """(M,) flat indices"""
    labels: Tensor
    """(M,) original ids"""
    firsts: Tensor
    """(N,) flat indices of each example's [CLS]"""
    pair_labels: Tensor
    """(N,) 0 or 1; IGNORED where an example is no pair"""
    bounded: Tensor | None
    """(S,) indices into `masked` of the positions that are predicted from the borders of their span"""
    borders: Tensor | None
    """(S, 2) flat indices of the tokens just outside the span of each position of `bounded`"""
    tokens: int
    """Number of real tokens"""
    pairs: int
    """Number of examples with a pair label"""

    @property
    def examples(self) -> int:
        """Number of examples, N."""
        return len(self.firsts)

    @property
    def rows(self) -> TextRows:
        """The examples in their rows: attention stays inside each."""
        real = None if self.tokens == self.real.numel() else self.real
        return TextRows(self.stretches, self.owners, real)

    @property
    def attention_mask(self) -> TextRows | None:
        """The rows; None where each row is a whole example, and attention may look everywhere."""
        rows = self.rows
        return None if rows.owners is None and rows.real is None else rows

    def to(self, device: torch.device) -> "PretrainBatch":
        """Return the batch on a device."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PretrainBatch":
        """Return the batch in memory that a GPU reads by itself; torch's DataLoader calls this."""
        return self._with_each(Tensor.pin_memory)

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory of a batch on a GPU until a stream that reads it is done."""
        for tensor in self._tensors().values():
            tensor.record_stream(stream)

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "PretrainBatch":
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


def collate(examples: Sequence[MaskedExample], pad_id: int, max_tokens: int, packed: bool) -> PretrainBatch:
    """Lay examples into full rows of `max_tokens`, or one into each row, padded to the longest.

    Raises ConfigError for an example longer than `max_tokens`.
    """
    lengths = [len(example.ids) for example in examples]
    if max(lengths) > max_tokens:
        raise ConfigError(f"an example of {max(lengths)} tokens must fit in max_tokens ({max_tokens})")
    rows = fill_rows(lengths, max_tokens) if packed else [[i] for i in range(len(examples))]
    width = max_tokens if packed else max(lengths)
    starts, order = _starts(rows, lengths, width)
    size = np.asarray(lengths, np.int64)
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    at = np.repeat(starts, size) + within  # flat index of each token

    def laid(values: Sequence[NDArray[np.generic]], empty: int) -> Tensor:
        flat = np.full(len(rows) * width, empty, np.int64)
        flat[at] = np.concatenate(values)
        return torch.from_numpy(flat.reshape(len(rows), width))

    owners = laid([np.full(n, k) for n, k in zip(lengths, order, strict=True)], -1)
    pair_labels = np.array([e.pair_label if e.pair_label >= 0 else IGNORED for e in examples], np.int64)
    masked = [e.positions + start for e, start in zip(examples, starts, strict=True)]
    bounded, borders = _borders(examples, starts)
    return PretrainBatch(
        input_ids=laid([e.ids for e in examples], pad_id),
        segment_ids=laid([e.segment_ids for e in examples], 0),
        position_ids=laid([within], 0),
        original_ids=laid([e.original for e in examples], pad_id),
        real=owners >= 0,
        owners=owners if len(rows) < len(examples) else None,
        stretches=_stretches(starts, size, len(rows), width),
        masked=torch.from_numpy(np.concatenate(masked).astype(np.int64)),
        labels=torch.from_numpy(np.concatenate([e.labels for e in examples]).astype(np.int64)),
        firsts=torch.from_numpy(starts),
        pair_labels=torch.from_numpy(pair_labels),
        bounded=bounded,
        borders=borders,
        tokens=int(size.sum()),
        pairs=int((pair_labels != IGNORED).sum()),
    )


def fill_rows(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return rows of indices, each row at most `max_tokens` long: best fit, the longest first.

    There are at most 11/9 of the fewest rows possible, plus one (Johnson 1973).
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # space left and row, ascending
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = bisect_left(open_rows, (lengths[i], 0))
        if fits < len(open_rows):
            space, row = open_rows.pop(fits)
        else:
            space, row = max_tokens, len(rows)
            rows.append([])
        rows[row].append(i)
        if space > lengths[i]:
            insort(open_rows, (space - lengths[i], row))
    return rows


def _starts(rows: Sequence[Sequence[int]], lengths: Sequence[int], width: int) -> tuple[Ints, list[int]]:
    """Return the start of each example as a flat index, and its place in its row."""
    starts, order = np.zeros(len(lengths), np.int64), [0] * len(lengths)
    for row, members in enumerate(rows):
        start = row * width
        for place, i in enumerate(members):
            starts[i], order[i] = start, place
            start += lengths[i]
    return starts, order


def _stretches(starts: Ints, sizes: Ints, rows: int, width: int) -> Tensor:
    """Return where examples, and the padding at the end of a row, begin; and the number of places."""
    used = np.bincount(starts // width, weights=sizes, minlength=rows).astype(np.int64)
    padding = (np.arange(rows) * width + used)[used < width]
    borders = np.sort(np.concatenate([starts, padding, [rows * width]]))
    return torch.from_numpy(borders.astype(np.int32))


def _borders(examples: Sequence[MaskedExample], starts: Ints) -> tuple[Tensor | None, Tensor | None]:
    """Return the masked positions inside bounded spans, and the tokens just outside these spans; None without spans.

    As in facebookresearch/SpanBERT, `masking.py`: a span at the edge of the text, beside [CLS] or [SEP], has no borders, and
    of a long one the first SPAN_TARGETS tokens count.
    """
    bounded, borders, before = [], [], 0
    for example, start in zip(examples, starts, strict=True):
        if example.spans is None:
            return None, None
        beside = example.spans + np.array([-1, 1])
        place = example.positions - example.spans[:, 0]
        counted = ~example.special[beside].any(axis=1) & (place < SPAN_TARGETS)
        bounded.append(np.flatnonzero(counted) + before)
        borders.append(beside[counted] + start)
        before += len(example.positions)
    return (
        torch.from_numpy(np.concatenate(bounded).astype(np.int64)),
        torch.from_numpy(np.concatenate(borders).astype(np.int64)),
    )
