"""Checkpoints of GLiClass: `config.json` with the body's own config in it, weights and a tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert.bodies.body import SEGMENTS
from bert.checkpoint.description import longest
from bert.checkpoint.gliner import TOKENIZER, check_marker, marker_ids
from bert.checkpoint.tensor_names import CLASS_PROJECTOR, LOGIT_SCALE, TEXT_PROJECTOR, Weights
from bert.config import BertConfig, refuse_other_graphs
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.families import family_of
from bert.files import read_object
from bert.tasks.spec import ClassPrompt, TaskSpec
from bert.tokenizer import Tokenizer

_PREFIX, _BODY, _SEGMENTS = "model.", "model.encoder_model.", "model.segment_embeddings.weight"
_BODIES = ("bert", "deberta-v2", "modernbert")
_MARKERS = ("<<LABEL>>", "<<SEP>>")
_ONLY: dict[str, Any] = {
    "architecture_type": "uni-encoder", "scorer_type": "simple", "use_lstm": False, "squeeze_layers": False,
    "encoder_layer_id": -1, "use_calibrator": False, "multimodal": False, "projector_hidden_act": "gelu",
}  # fmt: skip
"""Keys and the only value that is read, which is also what a missing key means."""
_SAVE_AGAIN = "save tokenizer and model of one training into one folder (save_pretrained of both)"


def is_gliclass(folder: Path) -> bool:
    """Tell whether a folder says that it is a GLiClass."""
    return read_object(folder / "config.json").get("model_type") == "GLiClass"


def read_config(folder: Path) -> tuple[dict[str, Any], BertConfig]:
    """Return the content of `config.json`, and the body that it describes.

    Raises UnsupportedModelError, which names it, for a kind that is not read, ConfigError for a broken value.
    """
    values = read_object(folder / "config.json")
    for key, only in _ONLY.items():
        if (found := values.get(key, only)) != only:
            raise UnsupportedModelError(f"{key} is {found!r}; of GLiClass only {only!r} is read")
    if not isinstance(body := values.get("encoder_config"), dict):
        raise ConfigError(f"config.json: encoder_config ({body!r}) must be an object")
    body = {"model_type": "deberta-v2", **body}
    if (model_type := body["model_type"]) not in _BODIES:
        raise UnsupportedModelError(f"its body is {model_type!r}; read are {', '.join(_BODIES)}")
    if isinstance(pieces := values.get("vocab_size"), int) and pieces > 0:
        body["vocab_size"] = pieces
    refuse_other_graphs(body, family_of(body))
    if values.get("use_segment_embeddings"):
        if model_type == "modernbert":
            raise UnsupportedModelError(
                "use_segment_embeddings is true, and a modernbert has no segments here"
            )
        body["type_vocab_size"] = 3
    return {**values, "encoder_config": body}, BertConfig.of_words(family_of(body).bert_config(body))


def read_gliclass(folder: Path, tensors: Weights) -> tuple[BertConfig, TaskSpec, Weights, Tokenizer]:
    """Return config, task, weights under BERT's names and GLiClass's for the head, and the tokenizer, of a folder's tensors.

    Raises what `read_config` does, and CheckpointError for a tokenizer or tensors that do not fit.
    """
    values, config = read_config(folder)
    prompt, tokenizer = _prompt(folder, values, config)
    words = values["encoder_config"]
    body = {name.removeprefix(_BODY): tensor for name, tensor in tensors.items() if name.startswith(_BODY)}
    if prompt.has_segments:
        _take_segments(body, tensors)
    heads = (TEXT_PROJECTOR, CLASS_PROJECTOR, LOGIT_SCALE)
    head = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    head = {name: tensor for name, tensor in head.items() if name.startswith(heads)}
    length = longest(folder, config.max_position_embeddings)
    spec = TaskSpec("open_classification", class_prompt=prompt, max_tokens=length)
    return config, spec, {**family_of(words).bert_weights(body, words), **head}, tokenizer


def _prompt(folder: Path, values: Mapping[str, Any], config: BertConfig) -> tuple[ClassPrompt, Tokenizer]:
    """Return how labels are read, and the tokenizer."""
    file = folder / TOKENIZER
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {TOKENIZER}: {_SAVE_AGAIN}")
    content = read_object(file)
    label_id, separator_id = marker_ids(content, _MARKERS, _SAVE_AGAIN)
    check_marker(values, "class_token_index", _MARKERS[0], label_id, _SAVE_AGAIN)
    pooling, extracts = values.get("pooling_strategy", "first"), bool(values.get("extract_text_features"))
    if extracts and pooling != "first":
        raise UnsupportedModelError(
            f"pooling_strategy is {pooling!r}; of extracted text only 'first' is read"
        )
    if extracts or values.get("use_segment_embeddings"):
        check_marker(values, "text_token_index", _MARKERS[1], separator_id, _SAVE_AGAIN)
    if '"prepend_scheme": "first"' in json.dumps(content.get("pre_tokenizer")):
        raise UnsupportedModelError(
            f"{TOKENIZER} has prepend_scheme 'first': its labels would be read in another way than behind a text"
        )
    prompt = ClassPrompt(
        label_id,
        separator_id,
        values.get("hidden_size") or config.hidden_size,
        "separator" if extracts else pooling,
        values.get("class_token_pooling", "first"),
        values.get("embed_class_token", True),
        not values.get("prompt_first", False),
        bool(values.get("use_segment_embeddings")),
        values.get("normalize_features", False),
    )
    return prompt, Tokenizer.parse(json.dumps(content).encode(), file)


def _take_segments(body: Weights, tensors: Weights) -> None:
    """Make GLiClass's segments the body's, whose own tokens are all of its first one. Raises CheckpointError."""
    table, name = tensors.get(_SEGMENTS), SEGMENTS.removeprefix("bert.")
    if table is None:
        raise CheckpointError(
            f"the checkpoint has no tensor {_SEGMENTS!r}, and use_segment_embeddings is true"
        )
    own = body.get(name, np.zeros_like(table))
    body[name] = table + own[:1]
