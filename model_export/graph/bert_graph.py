"""BERT as a fused ONNX graph, built operator by operator from the weights.

T tokens, H width, e the embeddings', I the feed-forward layer's, P positions, K scores, N texts, E an output embedding's,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any, Protocol

import onnx

from bert.checkpoint.tensor_names import CONVOLUTION, EMBEDDING, MLM_HEAD, Weights
from bert.config import BertConfig
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head, Task
from model_export.graph.embedding import write_embedding
from model_export.graph.graph_builder import GraphWriter
from model_export.graph.modern.body import write_head, write_layers


class GraphOps(Protocol):
    """Operators of one kind of device: `cpu_ops`, `int8_ops` and `cuda_ops` implement it."""

    w: GraphWriter
    config: BertConfig

    def inputs(self, *, text_ids: bool, one_position: bool) -> None:
        """Declare the inputs. With `one_position` the head is evaluated at one token of each text."""

    def embeddings(self) -> str:
        """Write (T, e): word, position and segment, normalised."""

    def project_embeddings(self, x: str, name: str) -> str:
        """Write the linear layer after them, where there is one; (T, e) → (T, H)."""

    def attention(self, x: str, name: str) -> str:
        """Write self-attention with its projections; (T, H) → (T, H)."""

    def attention_at_heads(self, x: str, name: str) -> str:
        """Write the same for each text's one head position, which reads all its tokens; (T, H) → (P, H)."""

    def intermediate(self, x: str, name: str) -> str:
        """Write the feed-forward layer's first half; (T, H) → (T, I)."""

    def project_add_norm(self, x: str, residual: str, dense: str, norm: str) -> str:
        """Write LayerNorm(x W + b + residual)."""

    def convolution(self, embedded: str) -> str:
        """Write the convolution of the embeddings that is added to the first layer's output; (T, H) → (T, H)."""

    def add_norm(self, x: str, residual: str, norm: str) -> str:
        """Write LayerNorm(x + residual)."""

    def text_ids(self) -> str:
        """Write (T,): the text of each token."""

    def to_float32(self, x: str) -> str:
        """Write a cast to float32, if x has another type."""


def build_graph(
    config: BertConfig,
    spec: TaskSpec,
    weights: Weights,
    make_ops: Callable[[GraphWriter, BertConfig, Weights], Any],
) -> onnx.ModelProto:
    """Return the graph of encoder and head; `make_ops` is one of `model_export.graph.operators`.

    Output: `logits` (P, K), for fill_mask (P, V), or for similarity `embeddings` (N, E); all float32.
    """
    writer = GraphWriter()
    ops = make_ops(writer, config, weights)
    task = TASKS[spec.task]
    needs_all = _needs_all(config, spec)
    one_position = task.has_one_position and not needs_all
    ops.inputs(text_ids=needs_all, one_position=one_position)
    if config.modern is not None:
        x = write_layers(ops, one_position=one_position, gathers=not needs_all)
    else:
        x = _write_layers(ops, one_position=one_position, gathers=not needs_all)
    if task.head is Head.EMBEDDING:
        text_ids = ops.text_ids() if needs_all else None
        embedding = write_embedding(writer, ops.to_float32(x), text_ids, spec, weights)
        writer.output(embedding, "embeddings", ["texts", spec.vector_size(config.hidden_size)])
        return writer.model(f"bert-{spec.task}")
    if config.modern is not None:
        text_ids = ops.text_ids() if needs_all else None
        logits = write_head(ops, x, text_ids, weights, task, config.modern)
    elif task.head is Head.VOCABULARY:
        logits = _masked_language_model(ops, x, weights, config)
    else:
        logits = _head(ops, x, weights, task)
    _, outputs = task.output(spec, config.hidden_size, config.vocab_size)
    writer.output(logits, "logits", ["positions", outputs])
    return writer.model(f"bert-{spec.task}")


def _needs_all(config: BertConfig, spec: TaskSpec) -> bool:
    """Tell whether the head reads all of a text's tokens, to pool them."""
    head = TASKS[spec.task].head
    if head is Head.EMBEDDING:
        return spec.pooling != "cls"
    return head is Head.POOLED and config.modern is not None and config.modern.classifier_pooling == "mean"


def _write_layers(ops: GraphOps, *, one_position: bool, gathers: bool) -> str:
    """Write embeddings and layers; (T, H), or with `gathers` the vectors (P, H) at `positions`."""
    config, writer = ops.config, ops.w
    x = ops.embeddings()
    if config.projects_embeddings:
        x = ops.project_embeddings(x, "bert.embeddings_project")
    embedded = x
    # All after the last attention works token by token, and the head sees few of them: gather there.
    for place, layer in enumerate(config.layer_order, start=1):
        name, is_last = f"bert.encoder.layer.{layer}", place == len(config.layer_order)
        if is_last and one_position:
            attended = ops.attention_at_heads(x, f"{name}.attention.self")
        else:
            attended = ops.attention(x, f"{name}.attention.self")
        if is_last and gathers:
            x = writer.node("Gather", x, "positions", axis=0)
            attended = attended if one_position else writer.node("Gather", attended, "positions", axis=0)
        x = _rest_of_layer(ops, attended, x, name)
        if place == 1 and config.conv_kernel_size > 0:
            convolved = ops.convolution(embedded)
            if is_last and gathers:
                convolved = writer.node("Gather", convolved, "positions", axis=0)
            x = ops.add_norm(x, convolved, f"{CONVOLUTION}.LayerNorm")
    return x


def _rest_of_layer(ops: GraphOps, attended: str, x: str, name: str) -> str:
    """Write what follows attention in an encoder layer; shapes stay."""
    out = f"{name}.attention.output"
    x = ops.project_add_norm(attended, x, f"{out}.dense", f"{out}.LayerNorm")
    wide = ops.intermediate(x, f"{name}.intermediate.dense")
    out = f"{name}.output"
    return ops.project_add_norm(wide, x, f"{out}.dense", f"{out}.LayerNorm")


def _head(ops: GraphOps, x: str, weights: Weights, task: Task) -> str:
    """Write the head; (P, H) → (P, K). It is small, and always float32."""
    x = ops.to_float32(x)
    if task.head is Head.POOLED:
        dense = _linear(ops.w, x, weights, "bert.pooler.dense")
        x = ops.w.activation(dense, ops.config.pooler_act)
    return _linear(ops.w, x, weights, task.head_name)


def _masked_language_model(ops: GraphOps, x: str, weights: Weights, config: BertConfig) -> str:
    """Write the head of pretraining, its decoder the table that the graph already has; (P, H) → (P, V), float32."""
    w, norm = ops.w, f"{MLM_HEAD}.transform.LayerNorm"
    dense = _linear(w, ops.to_float32(x), weights, f"{MLM_HEAD}.transform.dense")
    transformed = w.node(
        "LayerNormalization",
        w.activation(dense, config.mlm_act),
        *(w.constant(name, weights[name]) for name in (f"{norm}.weight", f"{norm}.bias")),
        axis=-1,
        epsilon=config.layer_norm_eps,
    )
    bias = w.constant(f"{MLM_HEAD}.bias", weights[f"{MLM_HEAD}.bias"])
    return w.node("Gemm", transformed, ops.to_float32(EMBEDDING), bias, transB=1)


def _linear(w: GraphWriter, x: str, weights: Weights, name: str) -> str:
    weight = w.constant(f"{name}.weight.T", weights[f"{name}.weight"].T)
    return w.node("Gemm", x, weight, w.constant(f"{name}.bias", weights[f"{name}.bias"]))
