"""Masked examples as transformers' models read them: one example a row, padded, labels in place."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.pretraining.examples.base import MaskedExample

NO_LABEL = -100
"""Label that transformers' losses leave out."""


@dataclass(frozen=True)
class Inputs:
    """A batch of B examples, T tokens each with padding, and S spans."""

    ids: Tensor
    """(B, T) after masking."""
    original: Tensor
    """(B, T) before masking."""
    segments: Tensor
    """(B, T)"""
    mask: Tensor
    """(B, T) int64, 1 at real tokens."""
    labels: Tensor
    """(B, T) original ids at the positions to predict, NO_LABEL elsewhere."""
    pair_labels: Tensor
    """(B,) labels of pairs, -1 without one."""
    edges: Tensor
    """(B, T) True at special tokens and padding."""
    spans: list[list[tuple[int, int, int]]]
    """Positions to predict that lie in a span, of each example: position, first and last of its span."""

    @property
    def causal_labels(self) -> Tensor:
        """(B, T) original ids, NO_LABEL at padding."""
        return self.original.masked_fill(self.mask == 0, NO_LABEL)


def padded(examples: Sequence[MaskedExample], pad_id: int) -> Inputs:
    """Return the batch, padded on the right to its longest example."""
    shape = len(examples), max(len(example.ids) for example in examples)
    ids, original = torch.full(shape, pad_id), torch.full(shape, pad_id)
    segments, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, NO_LABEL)
    edges = torch.ones(shape, dtype=torch.bool)
    spans = []
    for row, example in enumerate(examples):
        length = len(example.ids)
        ids[row, :length] = torch.from_numpy(example.ids)
        original[row, :length] = torch.from_numpy(example.original)
        segments[row, :length] = torch.from_numpy(example.segment_ids)
        mask[row, :length] = 1
        edges[row, :length] = torch.from_numpy(example.special)
        positions = torch.from_numpy(example.positions).long()
        labels[row, positions] = torch.from_numpy(example.labels).long()
        found = [] if example.spans is None else example.spans.tolist()
        spans.append([(at, *span) for at, span in zip(positions.tolist(), found, strict=False)])
    pair_labels = torch.tensor([example.pair_label for example in examples])
    return Inputs(ids, original, segments, mask, labels, pair_labels, edges, spans)
