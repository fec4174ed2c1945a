"""The operators of a body on each kind of device."""

from collections.abc import Callable
from typing import Any, NamedTuple

from bert.config import BertConfig
from model_export.graph.cpu_ops import CpuOps
from model_export.graph.cuda_ops import CudaOps
from model_export.graph.int8_ops import Int8Ops
from model_export.graph.modern.cuda_ops import ModernCudaOps
from model_export.graph.modern.int8_ops import ModernInt8Ops
from model_export.graph.modern.row_ops import ModernRowOps


class Operators(NamedTuple):
    """What `build_graph` writes a body with; `int8` takes a calibration too."""

    cpu: Callable[..., Any]
    int8: Callable[..., Any]
    cuda: Callable[..., Any]


def operators(config: BertConfig) -> Operators:
    """Return those of a config's body."""
    if config.modern is not None:
        return Operators(ModernRowOps, ModernInt8Ops, ModernCudaOps)
    return Operators(CpuOps, Int8Ops, CudaOps)
