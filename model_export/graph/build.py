"""A checkpoint as a fused ONNX graph, built operator by operator from the weights. P positions, K scores, N texts.

E is the width of an output embedding, V the size of the vocabulary.
"""

from collections.abc import Callable
from typing import Any

import onnx

from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from model_export.graph.bodies import graph_body
from model_export.graph.class_head import write_class_head
from model_export.graph.embedding import pools_chunks, write_embedding
from model_export.graph.graph_builder import GraphWriter
from model_export.graph.prompted_head import write_prompted_head


def build_graph(
    config: BertConfig,
    spec: TaskSpec,
    weights: Weights,
    make_ops: Callable[[GraphWriter, BertConfig, Weights], Any],
) -> onnx.ModelProto:
    """Return the graph of encoder and head; `make_ops` are the operators of the config's body (`graph_body`) on a device.

    Output: `logits` (P, K), for fill_mask (P, V), for sparse (N, V), for open_ner a row for each word and label of a text,
    for open_classification one for each label, or for similarity `embeddings` (N, E), for token_vectors (P, E); all float32.
    """
    writer, task, body = GraphWriter(), TASKS[spec.task], graph_body(config)
    ops = make_ops(writer, config, weights)
    ops.hidden_id = None if spec.token_vectors is None else spec.token_vectors.hidden_id
    needs_all = _needs_all(config, spec)
    one_position = task.has_one_position and not needs_all
    ops.inputs(text_ids=needs_all or task.head is Head.PROMPTED, one_position=one_position)
    x = body.write_layers(ops, one_position=one_position, gathers=not needs_all)
    text_ids = ops.text_ids() if needs_all else None
    if spec.class_prompt is not None:
        logits = write_class_head(writer, ops.to_float32(x), ops.text_ids(), spec.class_prompt, weights)
        writer.output(logits, "logits", ["labels", 1])
        return writer.model(f"bert-{spec.task}")
    if spec.label_prompt is not None:
        logits = write_prompted_head(ops, ops.to_float32(x), spec.label_prompt)
        writer.output(logits, "logits", ["words_and_labels", task.head_outputs(spec)])
    elif task.has_dense:
        pooled = ops.chunk_ids() if pools_chunks(spec) else text_ids
        embedding = write_embedding(writer, ops.to_float32(x), pooled, spec, weights)
        rows = "texts" if task.embeds else "positions"
        writer.output(embedding, "embeddings", [rows, spec.vector_size(config.hidden_size)])
    else:
        _, outputs = task.output(spec, config.hidden_size, config.vocab_size)
        writer.output(body.write_head(ops, x, text_ids, weights, task), "logits", ["positions", outputs])
    return writer.model(f"bert-{spec.task}")


def _needs_all(config: BertConfig, spec: TaskSpec) -> bool:
    """Tell whether the head reads all of a text's tokens, to pool them."""
    head = TASKS[spec.task].head
    if TASKS[spec.task].takes_largest:
        return True
    if spec.class_prompt is not None:
        return spec.class_prompt.text_pooling == "avg"
    if head is Head.EMBEDDING:
        return spec.pooling != "cls"
    return head is Head.POOLED and config.body.text_pooling != "cls"
