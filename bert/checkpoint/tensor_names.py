"""The tensors of a BERT checkpoint: names as this project knows them, and the shapes that a config asks for."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.config import BertConfig
from bert.errors import CheckpointError, UnsupportedModelError
from bert.families import family_of
from bert.relatives.config_file import read_values
from bert.relatives.family import POSITIONS, SEGMENTS, Array
from bert.relatives.modern import ModernShape
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head, Task

Weights = dict[str, NDArray[np.float32]]
EMBEDDING = "bert.embeddings.word_embeddings.weight"
MLM_HEAD = "cls.predictions"
DECODER = f"{MLM_HEAD}.decoder.weight"
"""The word embedding once more; some files repeat it under this name."""
ENCODER = ("bert.embeddings.", "bert.embeddings_project.", "bert.encoder.")
RELATIVE_BIAS = "bert.encoder.relative_attention_bias.weight"
"""Attention bias of each bucket of `bert.relatives.relative_positions` and each head."""
DISTANCES, DISTANCES_NORM = "bert.encoder.rel_embeddings.weight", "bert.encoder.LayerNorm"
"""Vectors of distances (`bert.relatives.distances`), and the norm of all of them."""
CONVOLUTION = "bert.encoder.conv"
WIDENING = "bert.embeddings.embed_proj.weight"
DENSE = "dense."
"""Beginning of the names of layers after an embedding's pooling, which have a file each."""
_MLM_BIAS, _DECODER_BIAS = f"{MLM_HEAD}.bias", f"{MLM_HEAD}.decoder.bias"
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Tensors of old checkpoints that are no weights."""


def bert_weights(weights: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """Return a folder's tensors as its family's are read; without a `config.json` they are BERT's own."""
    values = read_values(folder) if (folder / "config.json").is_file() else {}
    kept = {name: tensor for name, tensor in weights.items() if not name.endswith(_BUFFERS)}
    found = family_of(values).bert_weights(kept, values)
    bias = found.pop(_DECODER_BIAS, None)
    # The decoder's bias is the head's under a second name, but where nothing is tied the decoder's alone is used.
    if bias is not None and (values.get("tie_word_embeddings") is False or _MLM_BIAS not in found):
        found[_MLM_BIAS] = bias
    return found


def needed_shapes(config: BertConfig, spec: TaskSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor that the task's graph reads: name, shape. Linear weights are (out, in), as in torch."""
    h, i, e = config.hidden_size, config.intermediate_size, config.embedding_width
    if config.modern is not None:
        yield from _modern_shapes(config, spec, config.modern)
        return
    yield EMBEDDING, (config.vocab_size, e)
    if config.position_biased_input:
        yield POSITIONS, (config.max_position_embeddings, e)
    yield SEGMENTS, (config.type_vocab_size, e)
    if config.widens_embeddings:
        yield WIDENING, (h, e)
    yield from _weight_and_bias("bert.embeddings.LayerNorm", (h if config.widens_embeddings else e,))
    if config.projects_embeddings:
        yield from _weight_and_bias("bert.embeddings_project", (h, e))
    if config.relative_attention_num_buckets:
        yield RELATIVE_BIAS, (config.relative_attention_num_buckets, config.num_attention_heads)
    yield from _distance_shapes(config)
    for layer in range(config.num_layer_weights):
        name = f"bert.encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _weight_and_bias(f"{name}.attention.{part}", (h, h))
        yield from _weight_and_bias(f"{name}.attention.output.LayerNorm", (h,))
        yield from _weight_and_bias(f"{name}.intermediate.dense", (i, h))
        yield from _weight_and_bias(f"{name}.output.dense", (h, i))
        yield from _weight_and_bias(f"{name}.output.LayerNorm", (h,))
    task = TASKS[spec.task]
    if task.head is Head.POOLED:
        yield from _weight_and_bias("bert.pooler.dense", (h, h))
    if task.head is Head.VOCABULARY:  # the decoder is the word embedding
        yield from _weight_and_bias(f"{MLM_HEAD}.transform.dense", (e, h))
        yield from _weight_and_bias(f"{MLM_HEAD}.transform.LayerNorm", (e,))
        yield f"{MLM_HEAD}.bias", (config.vocab_size,)
    elif task.head is Head.EMBEDDING:
        yield from _dense_shapes(h, spec)
    else:
        yield from _weight_and_bias(head_name(config, task), (task.head_outputs(spec), h))


def _modern_shapes(
    config: BertConfig, spec: TaskSpec, shape: ModernShape
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the same of ModernBERT."""
    h, i, task = config.hidden_size, config.intermediate_size, TASKS[spec.task]
    yield EMBEDDING, (config.vocab_size, h)
    yield from _linear("bert.embeddings.LayerNorm", (h,), shape.norm_bias)
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        if layer:
            yield from _linear(f"{name}.attention.LayerNorm", (h,), shape.norm_bias)
        yield from _linear(f"{name}.attention.self.query_key_value", (3 * h, h), shape.attention_bias)
        yield from _linear(f"{name}.attention.output.dense", (h, h), shape.attention_bias)
        yield from _linear(f"{name}.intermediate.LayerNorm", (h,), shape.norm_bias)
        yield from _linear(f"{name}.intermediate.dense", (2 * i, h), shape.mlp_bias)
        yield from _linear(f"{name}.output.dense", (h, i), shape.mlp_bias)
    yield from _linear("bert.encoder.LayerNorm", (h,), shape.norm_bias)
    if task.head is Head.EMBEDDING:
        yield from _dense_shapes(h, spec)
        return
    yield from _linear("head.dense", (h, h), shape.classifier_bias)
    yield from _linear("head.norm", (h,), shape.norm_bias)
    if task.head is not Head.VOCABULARY:
        yield from _weight_and_bias(head_name(config, task), (task.head_outputs(spec), h))
    elif shape.decoder_bias:
        yield f"{MLM_HEAD}.bias", (config.vocab_size,)


def _dense_shapes(width: int, spec: TaskSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of the layers after an embedding's pooling."""
    width *= len(spec.poolings)
    for number, dense in enumerate(spec.dense):
        yield from _weight_and_bias(dense_name(number), (dense.out_features, width))
        width = dense.out_features


def head_name(config: BertConfig, task: Task) -> str:
    """Return the name of a task's last linear layer."""
    return config.family.answer_head if task.has_questions else task.head_name


def _distance_shapes(config: BertConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors beside BERT's that DeBERTa's layers read."""
    h = config.hidden_size
    if config.norm_rel_ebd == "layer_norm":
        yield from _weight_and_bias(DISTANCES_NORM, (h,))
    if config.pos_att_type:
        yield DISTANCES, (2 * config.distance_span, h)
        if not config.share_att_key:
            for layer in range(config.num_layer_weights):
                for term, part in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
                    if term in config.pos_att_type:
                        yield from _weight_and_bias(
                            f"bert.encoder.layer.{layer}.attention.self.{part}", (h, h)
                        )
    if config.conv_kernel_size > 0:
        shape = (h, h // config.conv_groups, config.conv_kernel_size)
        yield from _weight_and_bias(f"{CONVOLUTION}.conv", shape)
        yield from _weight_and_bias(f"{CONVOLUTION}.LayerNorm", (h,))


def dense_name(number: int) -> str:
    """Return the name of an embedding's dense layer, counted from 0."""
    return f"{DENSE}{number}"


def check_shapes(weights: Mapping[str, NDArray[np.float32]], config: BertConfig, spec: TaskSpec) -> None:
    """Raise CheckpointError for a tensor that is missing, left over in the encoder, of another shape, or not finite."""
    needed = dict(needed_shapes(config, spec))
    left_over = next((name for name in weights if name.startswith(ENCODER) and name not in needed), None)
    if left_over:
        raise CheckpointError(
            f"the checkpoint has the tensor {left_over!r}, which a BERT of {config.num_hidden_layers} layers has not"
        )
    architecture = next(iter(TASKS[spec.task].architectures), "")
    for name, shape in needed.items():
        tensor, own_name = weights.get(name), config.family.own_name(name, architecture)
        if tensor is None:
            reason = ""
            if name.startswith(MLM_HEAD) and f"{config.family.discriminator}.dense.weight" in weights:
                reason = ": it was trained to find replaced pieces, and to fill no masks"
            raise CheckpointError(
                f"the checkpoint has no tensor {own_name!r}, which a {spec.task} model needs{reason}"
            )
        if tensor.shape != shape:
            raise CheckpointError(
                f"tensor {own_name!r} has shape {tensor.shape}; config and task ask for {shape}"
            )
        if not np.isfinite(tensor).all():
            raise CheckpointError(f"tensor {name!r} holds values that are no numbers (inf or nan)")
    if TASKS[spec.task].head is Head.VOCABULARY:
        _check_tied(weights)


def _check_tied(weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Raise UnsupportedModelError for a decoder of its own; many files repeat the word embedding under its name."""
    if DECODER in weights and not np.array_equal(weights[DECODER], weights[EMBEDDING]):
        raise UnsupportedModelError(f"{DECODER} is not the word embedding, as it is in plain BERT")


def _linear(name: str, shape: tuple[int, ...], has_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    if has_bias:
        yield f"{name}.bias", shape[:1]


def _weight_and_bias(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
