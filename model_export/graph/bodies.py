"""The bodies in the graph: their operators on each kind of device, and what attention costs there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bert.bodies.bert import BertBody
from bert.bodies.body import Body
from bert.bodies.deberta import DebertaBody
from bert.bodies.modern import ModernBody
from bert.bodies.mpnet import MpnetBody
from bert.bodies.rotary import RotaryBody
from bert.config import BertConfig
from model_export.graph.bert import layers as bert_layers
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.deberta import ops as deberta
from model_export.graph.modern import layers as modern_layers
from model_export.graph.modern.cpu_ops import ModernCpuOps
from model_export.graph.modern.cuda_ops import ModernCudaOps
from model_export.graph.modern.int8_ops import ModernInt8Ops
from model_export.graph.mpnet import MpnetCudaOps, MpnetInt8Ops, MpnetRows
from model_export.graph.rotary import RotaryCpuOps, RotaryCudaOps, RotaryInt8Ops

MAX_SCORES = 2**26
"""Largest number of a head's scores in a run of several texts on a GPU, those of one text of 8,192 tokens."""


@dataclass(frozen=True, slots=True)
class GraphBody:
    """Writers of a body, for `build_graph`; `int8` takes a calibration too."""

    cpu: Callable[..., Any]
    int8: Callable[..., Any]
    cuda: Callable[..., Any]
    write_layers: Callable[..., str] = bert_layers.write_layers
    write_head: Callable[..., str] = bert_layers.write_head
    attention_cost: Callable[[BertConfig], dict[str, int]] = lambda config: {}
    """Returns what attention costs, as the manifest has it; empty where it is BERT's."""
    kept_scores: Callable[[BertConfig], int] = lambda config: 0
    """Returns the number of tensors as large as the scores that attention on a GPU keeps; 0 where it keeps none, or those
    of 512 tokens."""


GRAPH_BODIES: dict[type[Body], GraphBody] = {
    BertBody: GraphBody(CpuOps, Int8Ops, CudaOps),
    MpnetBody: GraphBody(MpnetRows, MpnetInt8Ops, MpnetCudaOps),
    RotaryBody: GraphBody(RotaryCpuOps, RotaryInt8Ops, RotaryCudaOps),
    DebertaBody: GraphBody(
        deberta.DebertaCpuOps,
        deberta.DebertaInt8Ops,
        deberta.DebertaCudaOps,
        attention_cost=deberta.attention_cost,
        kept_scores=deberta.kept_scores,
    ),
    ModernBody: GraphBody(
        ModernCpuOps,
        ModernInt8Ops,
        ModernCudaOps,
        modern_layers.write_layers,
        modern_layers.write_head,
        modern_layers.attention_cost,
        modern_layers.kept_scores,
    ),
}


def graph_body(config: BertConfig) -> GraphBody:
    """Return the writers of a config's body."""
    return GRAPH_BODIES[type(config.body)]


def attention_cost(config: BertConfig) -> dict[str, int]:
    """Return what attention costs, as the manifest has it; empty where it is BERT's."""
    return graph_body(config).attention_cost(config)


def max_pairs(config: BertConfig) -> int:
    """Return the `max_pairs` of a config's packing on a GPU; 0 for no limit."""
    kept = graph_body(config).kept_scores(config)
    return MAX_SCORES // kept if kept else 0
