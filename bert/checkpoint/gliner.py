"""Checkpoints of GLiNER: `gliner_config.json` with the body's own config in it, weights and a tokenizer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from bert.checkpoint.description import longest
from bert.checkpoint.tensor_names import LABELS, Weights, dense_name
from bert.checkpoint.weight_files import weight_files
from bert.config import BertConfig, read_values, refuse_other_graphs
from bert.errors import CheckpointError, ConfigError, UnsupportedModelError, displayed
from bert.families import family_of
from bert.files import read_object
from bert.names import HubName
from bert.tasks.spec import SPAN_MODES, DenseLayer, LabelPrompt, TaskSpec
from bert.tokenizer import Tokenizer

GLINER_CONFIG, TOKENIZER = "gliner_config.json", "tokenizer.json"
LABELS_TOKENIZER = "labels_tokenizer"
"""Folder of a bi-encoder's second tokenizer, inside of its own."""
BODY, _LABELS_BODY = "token_rep_layer.bert_layer.model.", "token_rep_layer.labels_encoder.model."
_LABELS_PROJECTION = "token_rep_layer.labels_projection"
_PARTS = ("token_rep_layer.", "rnn.", "span_rep_layer.", "prompt_rep_layer.", "scorer.")
"""Beginnings of the names of tensors."""
_BODIES = ("bert", "deberta-v2", "modernbert")
_BI_ENCODERS = ("gliner_bi_encoder_span", "gliner_bi_encoder_token")
_KINDS = ("gliner", "gliner_uni_encoder_span", "gliner_uni_encoder_token", *_BI_ENCODERS)
_MORE = {
    "labels_decoder": "a decoder of labels",
    "relations_layer": "a model of relations",
    "fuse_layers": "a model whose layers are fused",
    "post_fusion_schema": "a model whose words are fused with its labels",
    "span_encoder_config": "a model with another encoder before its spans",
    "precomputed_prompts_mode": "a model whose labels were read once and for all",
}
"""Keys whose presence says that the model is more than is read → what it is then."""
_MORE_OF_WORDS = {"represent_spans": "a model that judges spans of the words that it finds"}
"""The same for models that judge words; the others have no use for it."""
_SAVE_AGAIN = (
    "load the model with gliner (GLiNER.from_pretrained) and save it (save_pretrained) into a folder"
)


def is_gliner(folder: Path) -> bool:
    """Tell whether a folder says that it is a GLiNER."""
    return (folder / GLINER_CONFIG).is_file()


def check_body(model_type: str, which: str = "its body") -> None:
    """Raise UnsupportedModelError for a body that no GLiNER is read with."""
    if model_type not in _BODIES:
        raise UnsupportedModelError(f"{which} is {model_type!r}; read are {', '.join(_BODIES)}")


def read_config(folder: Path) -> tuple[dict[str, Any], BertConfig]:
    """Return the content of `gliner_config.json`, and the body that it describes.

    Raises UnsupportedModelError, which names it, for a kind that is not read, ConfigError for a broken value.
    """
    values = read_object(folder / GLINER_CONFIG)
    kind = values.get("model_type") or "gliner"
    if kind not in _KINDS:
        raise UnsupportedModelError(f"model_type is {kind!r}; read are {', '.join(_KINDS)}")
    more = {**_MORE, **(_MORE_OF_WORDS if _span_mode(values) == "token_level" else {})}
    for key, what in more.items():
        if values.get(key):
            raise UnsupportedModelError(f"{key} is {values[key]!r}, so this is {what}, which is not read")
    for key, only in (("words_splitter_type", "whitespace"), ("subtoken_pooling", "first")):
        if (found := values.get(key) or only) != only:
            raise UnsupportedModelError(f"{key} is {found!r}; only {only!r} is read")
    if kind in _BI_ENCODERS and not values.get("labels_encoder"):
        raise ConfigError(
            f"{GLINER_CONFIG}: labels_encoder ({values.get('labels_encoder')!r}) must be a name"
        )
    body = _body_of(folder, values)
    if isinstance(pieces := values.get("vocab_size"), int) and pieces > 0:
        body["vocab_size"] = pieces
    if values.get("labels_encoder"):
        values["labels_encoder_config"] = _body_of(folder, values, of_labels=True)
    return {**values, "encoder_config": body}, _config_of(body)


def _span_mode(values: Mapping[str, Any]) -> str:
    return str(values.get("span_mode") or SPAN_MODES[0]).replace("-", "_")


def _body_of(folder: Path, values: Mapping[str, Any], *, of_labels: bool = False) -> dict[str, Any]:
    """Return the config of the body that reads texts, or of that which reads labels. Raises as `read_config`."""
    name = "labels_encoder_config" if of_labels else "encoder_config"
    body = values.get(name)
    if body is None and (base := base_folder(folder, values, of_labels=of_labels)) is not None:
        body = read_values(base)
    if not isinstance(body, dict):
        raise ConfigError(f"{GLINER_CONFIG}: {name} ({body!r}) must be an object")
    body = {"model_type": "deberta-v2", **body}
    check_body(body["model_type"], "the body that reads its labels" if of_labels else "its body")
    refuse_other_graphs(body, family_of(body))
    return body


def _config_of(body: Mapping[str, Any]) -> BertConfig:
    return BertConfig.of_words(family_of(body).bert_config(body))


def base_folder(folder: Path, values: Mapping[str, Any], *, of_labels: bool = False) -> Path | None:
    """Return the folder of a body's own files, downloaded if need be, where a GLiNER has not all of them.

    Old ones name the model of the hub that has their body's config and the tokenizer; `of_labels` is that of the body that
    reads labels. Raises CheckpointError.
    """
    config, key, own = "encoder_config", "model_name", folder
    if of_labels:
        config, key, own = "labels_encoder_config", "labels_encoder", folder / LABELS_TOKENIZER
    if isinstance(values.get(config), dict) and (own / TOKENIZER).is_file():
        return None
    name = values.get(key)
    lacks = f"{own} has no {TOKENIZER}, or {GLINER_CONFIG} no {config}"
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{lacks}, and {key} ({name!r}) does not say where they are: {_SAVE_AGAIN}")
    if (of_hub := HubName.parse(name)) is None:
        if not Path(name).is_dir():
            raise CheckpointError(f"{lacks}, and {key} is {name!r}, which is no folder here: {_SAVE_AGAIN}")
        return Path(name)
    from bert.checkpoint import hub  # it reads this module

    try:
        return hub.download_texts(of_hub)
    except CheckpointError as error:
        raise CheckpointError(f"{lacks}, and those of {name} are needed: {error}; or {_SAVE_AGAIN}") from None


Parts = tuple[BertConfig, TaskSpec, Weights, Tokenizer]
"""Config, task, weights and tokenizer."""


def read_gliner(folder: Path, tensors: Weights) -> tuple[Parts, Parts | None]:
    """Return what reads texts, and what reads labels where they have an encoder of their own, of a folder's tensors.

    Weights are under BERT's names and GLiNER's for the head. Raises what `read_config` does, and CheckpointError for a
    tokenizer that does not fit.
    """
    values, config = read_config(folder)
    tensors = _with_aliases(folder, tensors)
    has_encoder = bool(values.get("labels_encoder"))
    tokenizer, ids = _plain_tokenizer(folder, values) if has_encoder else _tokenizer(folder, values)
    apart = (BODY, _LABELS_BODY, _LABELS_PROJECTION, *([f"{LABELS}."] if has_encoder else []))
    head = {name: tensor for name, tensor in tensors.items() if not name.startswith(apart)}
    layers = values.get("num_rnn_layers", int(values.get("has_rnn") is not False))
    layers = 0 if has_encoder else layers  # `gliner` makes an LSTM for a bi-encoder, and passes it over
    prompt = LabelPrompt(
        ids[0],
        ids[1],
        _span_mode(values),
        width=values.get("hidden_size", 512),
        max_width=values.get("max_width", 12),
        max_words=values.get("max_len", 384),
        lstm_layers=max(0, layers) if isinstance(layers, int) else layers,
        reads_label=not has_encoder and values.get("embed_ent_token", True) is False,
        has_encoder=has_encoder,
    )
    longest_text = longest(folder, config.max_position_embeddings)
    spec = TaskSpec("open_ner", label_prompt=prompt, max_tokens=longest_text)
    if (folder / "task.json").is_file():  # it has scores and limits too
        spec = replace(TaskSpec.read(folder), label_prompt=prompt)
    body = _bert_weights(tensors, BODY, values["encoder_config"])
    of_labels = _labels_encoder(folder, values, tensors, prompt) if has_encoder else None
    return (config, spec, {**body, **head}, tokenizer), of_labels


def _labels_encoder(folder: Path, values: Mapping[str, Any], tensors: Weights, prompt: LabelPrompt) -> Parts:
    """Return what makes a vector of a label: the mean of its body's, and the layers that follow, those of the head too."""
    words = values["labels_encoder_config"]
    config, layers = _config_of(words), list[tuple[str, DenseLayer]]()
    if config.hidden_size != prompt.width:
        layers.append((_LABELS_PROJECTION, DenseLayer(prompt.width, "identity")))
    if prompt.judges_spans:
        layers.append((f"{LABELS}.0", DenseLayer(4 * prompt.width, "relu")))
        layers.append((f"{LABELS}.3", DenseLayer(prompt.width, "identity")))
    weights = _bert_weights(tensors, _LABELS_BODY, words)
    for number, (name, _) in enumerate(layers):
        for kind in ("weight", "bias"):
            if (tensor := tensors.get(f"{name}.{kind}")) is None:
                raise CheckpointError(f"the checkpoint has no tensor '{name}.{kind}', which its labels need")
            weights[f"{dense_name(number)}.{kind}"] = tensor
    tokenizer, _ = _plain_tokenizer(folder, values, of_labels=True)
    length = longest(folder / LABELS_TOKENIZER, config.max_position_embeddings)
    dense = tuple(layer for _, layer in layers)
    return config, TaskSpec("similarity", dense=dense, normalize=False, max_tokens=length), weights, tokenizer


def _bert_weights(tensors: Weights, prefix: str, words: Mapping[str, Any]) -> Weights:
    body = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return family_of(words).bert_weights(body, words)


def _plain_tokenizer(
    folder: Path, values: Mapping[str, Any], *, of_labels: bool = False
) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer of a bi-encoder's body, and no marker: 0 in the place of each."""
    own = folder / LABELS_TOKENIZER if of_labels else folder
    if not (own / TOKENIZER).is_file():
        base = base_folder(folder, values, of_labels=of_labels)
        assert base is not None
        return Tokenizer.load(base), [0, 0]
    file, markers = own / TOKENIZER, {"[FLERT]", *_markers(values)}
    content = read_object(file)  # `gliner` adds the markers, for which a bi-encoder has no vectors
    added = content.get("added_tokens") or ()
    content["added_tokens"] = [token for token in added if token["content"] not in markers]
    return Tokenizer.parse(json.dumps(content).encode(), file), [0, 0]


def _with_aliases(folder: Path, tensors: Weights) -> Weights:
    """Add the tensors that a file of safetensors names in its metadata in place of saving them twice."""
    from safetensors import safe_open  # the service shares this package and has none

    found = dict(tensors)
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, framework="numpy") as opened:
            stated: dict[str, str] = opened.metadata() or {}
        for name, kept in stated.items():
            if kept in tensors:
                found.setdefault(name, tensors[kept])
            elif name.startswith(_PARTS) and name not in tensors:
                raise CheckpointError(
                    f"{file} says that {name!r} is {displayed(kept)!r}, which is not there: {_SAVE_AGAIN}"
                )
    return found


def _tokenizer(folder: Path, values: Mapping[str, Any]) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer, and the ids of the two markers."""
    markers = _markers(values)
    file, base = folder / TOKENIZER, base_folder(folder, values)
    if file.is_file():
        content = read_object(file)
    else:
        assert base is not None
        content = add_markers(Tokenizer.load(base).to_json(), markers, values)
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


def _markers(values: Mapping[str, Any]) -> list[str]:
    """Return the tokens before each label, and between labels and text."""
    return [str(values.get(f"{name}_token") or f"<<{name.upper()}>>") for name in ("ent", "sep")]


def add_markers(content: str, markers: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
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
