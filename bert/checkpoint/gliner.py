"""Checkpoints of GLiNER: `gliner_config.json` with the body's own config in it, weights and a tokenizer."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bert.checkpoint.description import longest
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig, read_values, refuse_other_graphs
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError
from bert.families import family_of
from bert.files import read_object
from bert.names import HubName
from bert.tasks.spec import SPAN_MODES, LabelPrompt, TaskSpec
from bert.tokenizer import Tokenizer

GLINER_CONFIG, TOKENIZER = "gliner_config.json", "tokenizer.json"
_BODY = "token_rep_layer.bert_layer.model."
_BODIES = ("bert", "deberta-v2", "modernbert")
_KINDS = ("gliner", "gliner_uni_encoder_span", "gliner_uni_encoder_token")
_MORE = {
    "labels_encoder": "a bi-encoder, whose labels have a model of their own",
    "labels_decoder": "a decoder of labels",
    "relations_layer": "a model of relations",
    "fuse_layers": "a model whose layers are fused",
    "post_fusion_schema": "a model whose words are fused with its labels",
    "span_encoder_config": "a model with another encoder before its spans",
}
"""Keys whose presence says that the model is more than is read → what it is then."""
_SAVE_AGAIN = (
    "load the model with gliner (GLiNER.from_pretrained) and save it (save_pretrained) into a folder"
)


def is_gliner(folder: Path) -> bool:
    """Tell whether a folder says that it is a GLiNER."""
    return (folder / GLINER_CONFIG).is_file()


def read_config(folder: Path) -> tuple[dict[str, Any], BertConfig]:
    """Return the content of `gliner_config.json`, and the body that it describes.

    Raises UnsupportedModelError, which names it, for a kind that is not read, ConfigError for a broken value.
    """
    values = read_object(folder / GLINER_CONFIG)
    kind = values.get("model_type") or "gliner"
    if kind not in _KINDS:
        raise UnsupportedModelError(f"model_type is {kind!r}; read are {', '.join(_KINDS)}")
    for key, what in _MORE.items():
        if values.get(key):
            raise UnsupportedModelError(f"{key} is {values[key]!r}, so this is {what}, which is not read")
    for key, only in (("words_splitter_type", "whitespace"), ("subtoken_pooling", "first")):
        if (found := values.get(key) or only) != only:
            raise UnsupportedModelError(f"{key} is {found!r}; only {only!r} is read")
    body = values.get("encoder_config")
    if body is None and (base := base_folder(folder, values)) is not None:
        body = read_values(base)
    if not isinstance(body, dict):
        raise ConfigError(f"{GLINER_CONFIG}: encoder_config ({body!r}) must be an object")
    body = {"model_type": "deberta-v2", **body}
    if (model_type := body["model_type"]) not in _BODIES:
        raise UnsupportedModelError(f"its body is {model_type!r}; read are {', '.join(_BODIES)}")
    if isinstance(pieces := values.get("vocab_size"), int) and pieces > 0:
        body["vocab_size"] = pieces
    refuse_other_graphs(body, family_of(body))
    return {**values, "encoder_config": body}, BertConfig.of_words(family_of(body).bert_config(body))


def base_folder(folder: Path, values: Mapping[str, Any]) -> Path | None:
    """Return the folder of the body's own files, downloaded if need be, where a GLiNER has not all of them.

    Old ones name the model of the hub that has their body's config and the tokenizer. Raises CheckpointError.
    """
    if isinstance(values.get("encoder_config"), dict) and (folder / TOKENIZER).is_file():
        return None
    name = values.get("model_name")
    lacks = f"{folder} has no {TOKENIZER}, or {GLINER_CONFIG} no encoder_config"
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{lacks}, and model_name ({name!r}) does not say where they are: {_SAVE_AGAIN}"
        )
    if (of_hub := HubName.parse(name)) is None:
        return Path(name)
    from bert.checkpoint import hub  # it reads this module

    try:
        return hub.download_texts(of_hub)
    except CheckpointError as error:
        raise CheckpointError(f"{lacks}, and those of {name} are needed: {error}") from None


def read_gliner(folder: Path, tensors: Weights) -> tuple[BertConfig, TaskSpec, Weights, Tokenizer]:
    """Return config, task, weights under BERT's names and GLiNER's for the head, and the tokenizer, of a folder's tensors.

    Raises what `read_config` does, and CheckpointError for a tokenizer that does not fit.
    """
    values, config = read_config(folder)
    tokenizer, ids = _tokenizer(folder, values)
    words = values["encoder_config"]
    body = {name.removeprefix(_BODY): tensor for name, tensor in tensors.items() if name.startswith(_BODY)}
    head = {name: tensor for name, tensor in tensors.items() if not name.startswith(_BODY)}
    layers = values.get("num_rnn_layers", int(values.get("has_rnn") is not False))
    prompt = LabelPrompt(
        ids[0],
        ids[1],
        str(values.get("span_mode") or SPAN_MODES[0]).replace("-", "_"),
        width=values.get("hidden_size", 512),
        max_width=values.get("max_width", 12),
        max_words=values.get("max_len", 384),
        lstm_layers=max(0, layers) if isinstance(layers, int) else layers,
        reads_label=values.get("embed_ent_token", True) is False,
    )
    longest_text = longest(folder, config.max_position_embeddings)
    spec = TaskSpec("open_ner", label_prompt=prompt, max_tokens=longest_text)
    return config, spec, {**family_of(words).bert_weights(body, words), **head}, tokenizer


def _tokenizer(folder: Path, values: Mapping[str, Any]) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer, and the ids of the two markers."""
    markers = [str(values.get(f"{name}_token") or f"<<{name.upper()}>>") for name in ("ent", "sep")]
    file, base = folder / TOKENIZER, base_folder(folder, values)
    if file.is_file():
        content = read_object(file)
    else:
        assert base is not None
        content = _with_markers(Tokenizer.load(base).to_json(), markers, values)
    ids = marker_ids(content, markers, _SAVE_AGAIN)
    if values.get("class_token_index", -1) != -1:
        check_marker(values, "class_token_index", markers[0], ids[0], _SAVE_AGAIN)
    return Tokenizer.parse(json.dumps(content).encode(), file), ids


def marker_ids(content: dict[str, Any], markers: Sequence[str], advice: str) -> list[int]:
    """Return the ids of special tokens, and mark them so in the content of a `tokenizer.json`: texts hold none.

    Raises CheckpointError, which ends in `advice`, for one that is missing.
    """
    added = {token["content"]: token for token in content.get("added_tokens") or ()}
    for marker in markers:
        if marker not in added:
            raise CheckpointError(f"{TOKENIZER} has no added token {marker!r}: {advice}")
        added[marker]["special"] = True
    return [added[marker]["id"] for marker in markers]


def check_marker(values: Mapping[str, Any], key: str, marker: str, found: int, advice: str) -> None:
    """Raise CheckpointError, which ends in `advice`, for a config that has another id for a special token."""
    if (stated := values.get(key)) != found:
        raise CheckpointError(
            f"the config has {key} {stated!r}, and {marker!r} is {found} in {TOKENIZER}: they do not belong together; "
            f"{advice}"
        )


def _with_markers(content: str, markers: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the markers at the ids that the model was trained with: the first is `class_token_index`, or the next free one."""
    backend = tokenizers.Tokenizer.from_str(content)
    first = values.get("class_token_index", -1)
    missing = first - backend.get_vocab_size() if first != -1 else 0
    if missing not in (0, 1):  # some have another token before them
        raise CheckpointError(
            f"{GLINER_CONFIG} has class_token_index {first!r}, and {values.get('model_name')} has "
            f"{backend.get_vocab_size()} pieces: {_SAVE_AGAIN}"
        )
    backend.add_special_tokens([*["[FLERT]"] * missing, *markers])
    found: dict[str, Any] = json.loads(backend.to_str())
    return found
