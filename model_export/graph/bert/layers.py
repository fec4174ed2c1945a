"""BERT's layers and heads, operator by operator, and those of bodies that are made from BERT's.

T tokens, H width, e the embeddings', I the feed-forward layer's, P positions, K scores, V vocabulary.
"""

from bert.bodies.body import EMBEDDING, MLM_HEAD
from bert.checkpoint.tensor_names import Weights
from bert.tasks.task import Head, Task
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.graph_builder import linear

Ops = CpuOps | CudaOps


def write_layers(ops: Ops, *, one_position: bool, gathers: bool) -> str:
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
        if place == 1:
            x = ops.after_first(embedded, x, gathers=is_last and gathers)
    return x


def _rest_of_layer(ops: Ops, attended: str, x: str, name: str) -> str:
    """Write what follows attention in an encoder layer; shapes stay."""
    out = f"{name}.attention.output"
    x = ops.project_add_norm(attended, x, f"{out}.dense", f"{out}.LayerNorm")
    wide = ops.intermediate(x, f"{name}.intermediate.dense")
    out = f"{name}.output"
    return ops.project_add_norm(wide, x, f"{out}.dense", f"{out}.LayerNorm")


def write_head(ops: Ops, x: str, text_ids: str | None, weights: Weights, task: Task) -> str:
    """Write the head, which is small and always float32; (P, H) → (P, K), or (P, V) of a masked language model.

    One that takes a text's largest scores reads (T, H) and gives (N, V).
    """
    x = ops.to_float32(x)
    if task.head is Head.VOCABULARY:
        return _masked_language_model(ops, x, weights, task)
    if task.head is Head.POOLED:
        x = ops.w.activation(linear(ops.w, x, weights, "bert.pooler.dense"), ops.config.pooler_act)
    return linear(ops.w, x, weights, task.head_name)


def _masked_language_model(ops: Ops, x: str, weights: Weights, task: Task) -> str:
    """Write the head of pretraining, its decoder the table that the graph already has; (P, H) → (P, V), float32."""
    w, norm, name = ops.w, f"{MLM_HEAD}.transform.LayerNorm", f"{MLM_HEAD}.transform.dense"
    if task.takes_largest:
        dense = ops.head_linear(x, name, weights[f"{name}.weight"].T, weights[f"{name}.bias"])
    else:
        dense = linear(w, x, weights, name)
    transformed = w.node(
        "LayerNormalization",
        w.activation(dense, ops.config.mlm_act),
        *(w.constant(name, weights[name]) for name in (f"{norm}.weight", f"{norm}.bias")),
        axis=-1,
        epsilon=ops.config.layer_norm_eps,
    )
    bias = w.constant(f"{MLM_HEAD}.bias", weights[f"{MLM_HEAD}.bias"])
    if task.takes_largest:
        return ops.largest_scores(transformed, bias)
    return w.node("Gemm", transformed, ops.to_float32(EMBEDDING), bias, transB=1)
