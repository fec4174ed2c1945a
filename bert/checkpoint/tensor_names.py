"""The tensors of a BERT checkpoint: names as this project knows them, and the shapes that a config asks for."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert.bodies.body import EMBEDDING, MLM_HEAD, Shape, layer_shapes
from bert.bodies.family import Array
from bert.config import BertConfig, read_values
from bert.errors import CheckpointError, UnsupportedModelError
from bert.families import family_of
from bert.tasks.registry import TASKS
from bert.tasks.spec import LabelPrompt, TaskSpec
from bert.tasks.task import Head, Task

Weights = dict[str, NDArray[np.float32]]
DECODER = f"{MLM_HEAD}.decoder.weight"
"""The word embedding once more; some files repeat it under this name."""
ENCODER = ("bert.embeddings.", "bert.embeddings_project.", "bert.encoder.")
DENSE = "dense."
"""Beginning of the names of layers after an embedding's pooling, which have a file each."""
SPANS, LABELS, SCORER = "span_rep_layer.span_rep_layer", "prompt_rep_layer", "scorer"
PROJECTION, LSTM = "token_rep_layer.projection", "rnn.lstm"
"""Parts of a head for labels of the request, by GLiNER's names."""
TEXT_PROJECTOR, CLASS_PROJECTOR, LOGIT_SCALE = "text_projector", "classes_projector", "logit_scale"
"""Parts of one that judges all labels in one run, by GLiClass's names."""
QUERY_WEIGHTS = "query.weight"
"""Weights of queries' pieces, (V,)."""
_MLM_BIAS, _DECODER_BIAS = f"{MLM_HEAD}.bias", f"{MLM_HEAD}.decoder.bias"
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
"""Tensors of old checkpoints that are not weights."""


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


def needed_shapes(config: BertConfig, spec: TaskSpec) -> Iterator[Shape]:
    """Yield every tensor that the task's graph reads: name, shape. Linear weights are (out, in), as in torch."""
    h, body, task = config.hidden_size, config.body, TASKS[spec.task]
    yield from body.shapes(config, projects=config.projects_embeddings)
    if task.has_dense:
        yield from _dense_shapes(h, spec)
        return
    if task.head is Head.VOCABULARY:
        yield from body.vocabulary_shapes(config)
        if spec.query_weights:
            yield QUERY_WEIGHTS, (config.vocab_size,)
        return
    if spec.label_prompt is not None:
        yield from _prompted_shapes(h, spec.label_prompt)
        return
    if spec.class_prompt is not None:
        for name in (TEXT_PROJECTOR, CLASS_PROJECTOR):
            yield from layer_shapes(f"{name}.linear_1", (spec.class_prompt.width, h))
            yield from layer_shapes(f"{name}.linear_2", (h, spec.class_prompt.width))
        if spec.class_prompt.normalize:
            yield LOGIT_SCALE, ()
        return
    yield from body.pooler_shapes(config) if task.head is Head.POOLED else body.scorer_shapes(config)
    yield from layer_shapes(head_name(config, task), (task.head_outputs(spec), h))


def _prompted_shapes(hidden: int, prompt: LabelPrompt) -> Iterator[Shape]:
    """Yield the tensors of a head for labels of the request."""
    width = prompt.width
    if width != hidden:
        yield from layer_shapes(PROJECTION, (width, hidden))
    for layer in range(prompt.lstm_layers):
        for suffix in (f"_l{layer}", f"_l{layer}_reverse"):
            for kind, inputs in (("ih", width), ("hh", width // 2)):
                yield f"{LSTM}.weight_{kind}{suffix}", (2 * width, inputs)
                yield f"{LSTM}.bias_{kind}{suffix}", (2 * width,)
    if not prompt.judges_spans:
        yield from layer_shapes(f"{SCORER}.proj_token", (2 * width, width))
        yield from layer_shapes(f"{SCORER}.proj_label", (2 * width, width))
        yield from layer_shapes(f"{SCORER}.out_mlp.0", (4 * width, 3 * width))
        yield from layer_shapes(f"{SCORER}.out_mlp.3", (3, 4 * width))
        return
    is_plain = prompt.span_mode == "marker"
    inner = 2 * width if is_plain else 4 * width
    parts = {f"{SPANS}.project_start": (inner, width), f"{SPANS}.project_end": (inner, width)}
    if is_plain:
        yield from layer_shapes(f"{SPANS}.out_project", (width, 2 * width))
    else:
        parts[f"{SPANS}.out_project"] = (inner, 2 * width)
    if not prompt.has_encoder:  # else it is among that one's layers
        parts[LABELS] = (4 * width, width)
    for name, first in parts.items():
        yield from layer_shapes(f"{name}.0", first)
        yield from layer_shapes(f"{name}.3", (width, first[0]))


def _dense_shapes(width: int, spec: TaskSpec) -> Iterator[Shape]:
    """Yield the tensors of the layers after an embedding's pooling."""
    width *= len(spec.poolings)
    for number, dense in enumerate(spec.dense):
        yield from layer_shapes(dense_name(number), (dense.out_features, width))
        width = dense.out_features


def head_name(config: BertConfig, task: Task) -> str:
    """Return the name of a task's last linear layer."""
    return config.family.answer_head if task.has_questions else task.head_name


def dense_name(number: int) -> str:
    """Return the name of an embedding's dense layer, counted from 0."""
    return f"{DENSE}{number}"


def check_shapes(weights: Mapping[str, NDArray[np.float32]], config: BertConfig, spec: TaskSpec) -> None:
    """Raise CheckpointError for a tensor that is missing, left over in the encoder, of another shape, or not finite."""
    needed = dict(needed_shapes(config, spec))
    left_over = next((name for name in weights if name.startswith(ENCODER) and name not in needed), None)
    if left_over:
        raise CheckpointError(
            f"the checkpoint has the tensor {left_over!r}, which a BERT of {config.num_hidden_layers} layers does not have"
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
            raise CheckpointError(f"tensor {name!r} holds values that are not numbers (inf or nan)")
    # Many files repeat the word embedding under the decoder's name.
    is_tied = DECODER not in weights or np.array_equal(weights[DECODER], weights[EMBEDDING])
    if TASKS[spec.task].head is Head.VOCABULARY and not is_tied:
        raise UnsupportedModelError(f"{DECODER} is not the word embedding, as it is in plain BERT")
