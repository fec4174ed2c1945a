"""The operators of a body on each kind of device."""

from collections.abc import Callable
from typing import Any, NamedTuple

from bert.config import BertConfig
from model_export.graph.cpu_ops import CpuOps
from model_export.graph.cuda_ops import CudaOps
from model_export.graph.int8_ops import Int8Ops
from model_export.graph.modern.cuda_ops import ModernCudaOps
from model_export.graph.modern.int8_ops import ModernInt8Ops
from model_export.graph.modern.long_rows import block_size
from model_export.graph.modern.row_ops import ModernRowOps

MAX_SCORES = 2**26
"""Largest number of a head's scores in a run of several texts on a GPU, those of one text of 8,192 tokens."""
COPIED = 2
"""Time of attention in blocks over its time in rows of as many tokens: each block is copied beside two others.

Measured on a Zen 4 with 12 heads of 64: docs/measurements/2026-11-23-deberta-modernbert.md.
"""


class Operators(NamedTuple):
    """Writers of a body, for `build_graph`; `int8` takes a calibration too."""

    cpu: Callable[..., Any]
    int8: Callable[..., Any]
    cuda: Callable[..., Any]


def operators(config: BertConfig) -> Operators:
    """Return the operators of a config's body."""
    if config.modern is not None:
        return Operators(ModernRowOps, ModernInt8Ops, ModernCudaOps)
    return Operators(CpuOps, Int8Ops, CudaOps)


def max_pairs(config: BertConfig) -> int:
    """Return the `max_pairs` of a config's packing on a GPU; 0 where attention keeps no scores, or those of 512 tokens.

    Windows are a mask, for which the kernel that keeps the scores is taken. DeBERTa's terms are tensors as large as they.
    """
    is_masked = config.modern is not None and any(config.modern.sliding)
    return MAX_SCORES // (1 + len(config.pos_att_type)) if is_masked or config.pos_att_type else 0


def attention_cost(config: BertConfig) -> dict[str, int]:
    """Return what attention costs, as the manifest has it; empty where it is BERT's."""
    if config.modern is not None and any(config.modern.sliding):
        return {
            "window_layers": sum(config.modern.sliding),
            "window_tokens": COPIED * 3 * block_size(config),
        }
    return {"scores": 1 + len(config.pos_att_type)} if config.pos_att_type else {}
