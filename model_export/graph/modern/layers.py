"""ModernBERT's layers and heads, operator by operator. T tokens, H width, I the gated layer's, P positions, N texts."""

from bert.bodies.body import EMBEDDING, EMBEDDINGS_NORM, MLM_HEAD
from bert.bodies.modern import ModernBody
from bert.checkpoint.tensor_names import Weights, head_name
from bert.config import BertConfig
from bert.tasks.task import Head, Task
from model_export.graph.embedding import pooled_mean
from model_export.graph.graph_builder import linear
from model_export.graph.modern.cpu_ops import ModernCpuOps
from model_export.graph.modern.cuda_ops import ModernCudaOps
from model_export.graph.modern.long_rows import block_size

COPIED = 2
"""Time of attention in blocks over its time in rows of as many tokens: each block is copied beside two others.

Measured on a Zen 4 with 12 heads of 64: docs/measurements/2026-11-23-deberta-modernbert.md.
"""
LAST_NORM = "bert.encoder.LayerNorm"

Ops = ModernCpuOps | ModernCudaOps


def write_layers(ops: Ops, *, one_position: bool, gathers: bool) -> str:
    """Write embeddings and layers; (T, H), or with `gathers` the vectors (P, H) at `positions`.

    With `one_position` the last attention is that of each text's one position.
    """
    w, last = ops.w, ops.config.num_hidden_layers - 1
    x = read = ops.norm(ops.words(), EMBEDDINGS_NORM)
    for layer in range(last + 1):
        name = f"bert.encoder.layer.{layer}"
        at_heads = one_position and layer == last
        attended = _attention(ops, read, layer, at_heads=at_heads)
        if gathers and layer == last:
            x = w.node("Gather", x, "positions", axis=0)
            attended = attended if at_heads else w.node("Gather", attended, "positions", axis=0)
        projected = ops.of_any(attended, f"{name}.attention.output.dense")
        x, read = ops.add_and_norm(projected, x, f"{name}.intermediate.LayerNorm")
        inner, gate = w.nodes(
            "Split", ops.of_norm(read, f"{name}.intermediate.dense"), outputs=2, axis=-1, num_outputs=2
        )
        gated = w.node("Mul", w.activation(inner, ops.config.hidden_act), gate)
        fed = ops.of_any(gated, f"{name}.output.dense")
        after = LAST_NORM if layer == last else f"bert.encoder.layer.{layer + 1}.attention.LayerNorm"
        x, read = ops.add_and_norm(fed, x, after)
    return read


def _attention(ops: Ops, read: str, layer: int, *, at_heads: bool) -> str:
    width, name = ops.config.hidden_size, f"bert.encoder.layer.{layer}.attention.self.query_key_value"
    if at_heads:
        query = ops.of_norm(ops.queries_at_heads(read), name, 0, width)
        joined = ops.of_norm(read, name, width, 3 * width)
        key, value = ops.w.nodes("Split", joined, outputs=2, axis=-1, num_outputs=2)
        return ops.attend_at_heads(query, key, value, layer)
    query, key, value = ops.w.nodes("Split", ops.of_norm(read, name), outputs=3, axis=-1, num_outputs=3)
    return ops.attend(query, key, value, layer)


def write_head(ops: Ops, x: str, text_ids: str | None, weights: Weights, task: Task) -> str:
    """Write a head's scores, always in float32; of x (P, H), or of the means of (T, H) by `text_ids`."""
    w, body = ops.w, ModernBody.of(ops.config.body)
    x = ops.to_float32(x)
    if text_ids is not None and not task.takes_largest:
        x = pooled_mean(w, x, text_ids)
    if task.takes_largest:
        dense = ops.head_linear(
            x, "head.dense", weights["head.dense.weight"].T, weights.get("head.dense.bias")
        )
    else:
        dense = linear(w, x, weights, "head.dense")
    dense = w.activation(dense, body.classifier_activation)
    kinds = ("weight", "bias") if body.norm_bias else ("weight",)
    parameters = [w.constant(f"head.norm.{kind}", weights[f"head.norm.{kind}"]) for kind in kinds]
    x = w.node("LayerNormalization", dense, *parameters, axis=-1, epsilon=ops.config.layer_norm_eps)
    if task.head is not Head.VOCABULARY:
        return linear(w, x, weights, head_name(ops.config, task))
    bias = [w.constant(f"{MLM_HEAD}.bias", weights[f"{MLM_HEAD}.bias"])] if body.decoder_bias else []
    if task.takes_largest:
        return ops.largest_scores(x, bias[0] if bias else None)
    return w.node("Gemm", x, ops.to_float32(EMBEDDING), *bias, transB=1)


def attention_cost(config: BertConfig) -> dict[str, int]:
    """Return the layers with a window and what it costs, as the manifest has it; empty where none has one."""
    layers = sum(ModernBody.of(config.body).sliding)
    return {"window_layers": layers, "window_tokens": COPIED * 3 * block_size(config)} if layers else {}


def kept_scores(config: BertConfig) -> int:
    """Return 1 where a layer has a window: it is a mask, for which the kernel that keeps the scores is taken."""
    return int(any(ModernBody.of(config.body).sliding))
