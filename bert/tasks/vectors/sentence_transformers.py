"""Settings of a sentence-transformers folder: those that an export follows or refuses, and those of a new checkpoint.

An export that passed over a part of it would give other vectors than the model's.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from bert.errors import ConfigError
from bert.files import read_json
from bert.tasks.spec import POOLINGS, SIMILARITIES, DenseLayer, TaskSpec
from bert.tokenizer import Tokenizer

MODULES, SETTINGS, LENGTHS = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
UNKNOWN_POOLING = (
    "nothing says how the tokens' vectors become an embedding: their mean is taken; --pooling cls takes [CLS]"
)
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_ORDER = re.compile("Transformer Pooling( Dense)*( Normalize)?")
_EXPORTED = "Transformer, Pooling, any number of Dense, and at most one Normalize at the end"
# Old names of poolings → ours, which are the new ones; in the order in which several were joined.
_OLD_MODES = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
_ACTIVATIONS = {"Tanh": "tanh", "Identity": "identity"}
_INPUTS = ("module_input_name", "module_output_name")
"""Keys that say what a module reads and writes."""
_FLAG = "pooling_mode_"
_POOLING_KEYS = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
_DENSE_KEYS = {"in_features", "out_features", "bias", "activation_function"}
_LENGTHS_KEYS = {"max_seq_length", "do_lower_case", "modality_config", "unpad_inputs"}


def is_embedder(folder: Path) -> bool:
    """Tell whether a folder is that of an embedding model of sentence-transformers."""
    return (folder / MODULES).is_file() and not is_cross_encoder(folder)


def is_cross_encoder(folder: Path) -> bool:
    """Tell whether a folder's own settings call it a cross-encoder."""
    return bool(read_settings(folder).get("model_type") == "CrossEncoder")


def honour(folder: Path, spec: TaskSpec, max_tokens: int) -> TaskSpec:
    """Return the description of embeddings with all that `modules.json` and its like state.

    `max_tokens` is the length that the model and its tokenizer allow. Raises ConfigError, with file and value, for what
    would not be honoured.
    """
    modules = read_modules(folder)
    longest = max_seq_length(folder, "feature-extraction", "last_hidden_state") or max_tokens
    normalize = dict(modules).get("Normalize")
    if normalize:
        check_known(
            f"{normalize}/config.json", read_file(folder, f"{normalize}/config.json"), set(), inputs()
        )
    spec = with_prompts(folder, spec)
    return replace(
        spec,
        pooling=_pooling(folder, dict(modules)["Pooling"], spec.prompts),
        dense=tuple(dense_layer(folder, path) for kind, path in modules if kind == "Dense"),
        normalize=normalize is not None,
        similarity=_similarity(read_settings(folder), normalize is not None),
        max_tokens=min(longest, max_tokens),
    )


def max_seq_length(folder: Path, task: str, output: str, more: Collection[str] = ()) -> int | None:
    """Return the length that a transformer's own settings state, if they do; they may have `more` keys.

    Raises ConfigError where it is not a number, or where the transformer is said to be for another task than `task`, or to
    give another tensor than `output`.
    """
    lengths = read_file(folder, LENGTHS)
    fixed = {"transformer_task": task, "module_output_name": "token_embeddings"}
    check_known(LENGTHS, lengths, _LENGTHS_KEYS.union(more), fixed)
    modalities = lengths.get("modality_config") or {}
    if not isinstance(modalities, dict):
        raise ConfigError(f"{LENGTHS}: modality_config ({modalities!r}) must be an object")
    exported = {"method": "forward", "method_output_name": output}
    if (modality := modalities.get("text", exported)) != exported:
        raise ConfigError(f"{LENGTHS}: modality_config is {modality!r} for text; exported is {output!r}")
    longest = lengths.get("max_seq_length")
    if not isinstance(longest, int | None):
        raise ConfigError(f"{LENGTHS}: max_seq_length is {longest!r}, which is not a whole number")
    return longest


def with_prompts(folder: Path, spec: TaskSpec) -> TaskSpec:
    """Return the description with the prompts of `config_sentence_transformers.json`. Raises ConfigError."""
    settings = read_settings(folder)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ConfigError(f"{SETTINGS}: prompts are {prompts!r}, and no texts by name")
    default = settings.get("default_prompt_name") or ""
    return replace(spec, prompts=dict(prompts), default_prompt_name=default)


def write(folder: Path, spec: TaskSpec, hidden_size: int) -> None:
    """Write the files by which sentence-transformers makes the embeddings that `spec` describes, without dense layers."""
    assert not spec.dense, "a checkpoint of bert-finetune has no layers after the pooling"
    kinds = ("Transformer", "Pooling", "Normalize") if spec.normalize else ("Transformer", "Pooling")
    paths = [f"{number}_{kind}" if number else "" for number, kind in enumerate(kinds)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    settings = {
        "prompts": spec.prompts,
        "default_prompt_name": spec.default_prompt_name or None,
        "similarity_fn_name": spec.similarity,
    }
    write_files(
        folder,
        {
            MODULES: modules,
            SETTINGS: settings,
            LENGTHS: {"max_seq_length": spec.max_tokens, "do_lower_case": False},
            f"{paths[1]}/config.json": _pooling_config(spec.poolings, hidden_size),
        },
    )


def write_files(folder: Path, contents: Mapping[str, object]) -> None:
    """Write JSON files by their names inside a folder, whose own folders are made."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _pooling_config(modes: Sequence[str], width: int) -> dict[str, Any]:
    """Return the flags that all versions read, or for another order than theirs the list of versions since 5.4."""
    flags = {f"{_FLAG}{old}": mode in modes for old, mode in _OLD_MODES.items()}
    if list(modes) == [mode for mode in _OLD_MODES.values() if mode in modes]:
        return {"word_embedding_dimension": width, **flags, "include_prompt": True}
    return {"embedding_dimension": width, "pooling_mode": list(modes), "include_prompt": True}


def lower_cased(folder: Path, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer, one that lower-cases first where the folder asks for that."""
    if not read_file(folder, LENGTHS).get("do_lower_case"):
        return tokenizer
    if tokenizer.ids([ascii_uppercase]) == tokenizer.ids([ascii_lowercase]):
        return tokenizer
    return tokenizer.lower_cased()


def dense_folders(folder: Path) -> list[Path]:
    """Return the folders of the dense layers."""
    return [folder / path for kind, path in read_modules(folder) if kind == "Dense"]


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of `config_sentence_transformers.json`, {} where there is none."""
    settings: dict[str, Any] = read_file(folder, SETTINGS)
    return settings


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module in `modules.json`. Raises ConfigError for what is not a list of them."""
    listed = read_file(folder, MODULES)
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise ConfigError(f"{MODULES} is not a list of modules")
    return [(str(m.get("type", "")).rpartition(".")[2], str(m.get("path", ""))) for m in listed]


def read_modules(
    folder: Path, kinds: Sequence[str] = _KINDS, order: re.Pattern[str] = _ORDER, exported: str = _EXPORTED
) -> list[tuple[str, str]]:
    """Return kind and folder of each module. Raises ConfigError for one that the graph would not have.

    Read are these kinds in an order of the pattern, which `exported` describes.
    """
    modules = listed_modules(folder)
    for kind, path in modules:
        if kind not in kinds:
            raise ConfigError(
                f"{MODULES} has a module {kind!r} ({path}), which is not exported: the embeddings would be others. "
                f"Only {', '.join(kinds)} are"
            )
        if kind == "Transformer" and path:
            raise ConfigError(
                f"{MODULES} has the transformer in {path!r}: save the model anew with sentence-transformers 3 or later, "
                "which puts it into the folder itself"
            )
        if Path(path).name != path or path == "..":
            raise ConfigError(f"{MODULES} names {path!r}, which is not a folder beside it")
    kept = [
        (kind, path) for kind, path in modules if kind != "Dropout"
    ]  # it does nothing outside of training
    found = " ".join(kind for kind, _ in kept)
    if not order.fullmatch(found):
        raise ConfigError(f"{MODULES} has the modules {found}; exported are {exported}")
    return kept


def _pooling(folder: Path, name: str, prompts: Mapping[str, Any]) -> str:
    """Return the names of the poolings, joined by `+`. Raises ConfigError for one that is not known."""
    file = f"{name}/config.json"
    values = read_file(folder, file)
    check_known(file, values, _POOLING_KEYS | {key for key in values if key.startswith(_FLAG)}, {})
    listed = values.get("pooling_mode") or _old_modes(file, values)
    modes = [str(mode) for mode in listed] if isinstance(listed, list) else [str(listed)]
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise ConfigError(f"{file}: the pooling is {unknown[0]!r}; known are {', '.join(POOLINGS)}")
    includes = values.get("include_prompt", True)
    if not isinstance(includes, bool):
        raise ConfigError(f"{file}: include_prompt ({includes!r}) must be true or false")
    if not includes and any(prompts.values()):
        raise ConfigError(
            f"{file}: include_prompt is false, so the pooling leaves out the prompt's tokens, and the service pools all: "
            f"take the prompts out of {SETTINGS} if texts need none"
        )
    return "+".join(modes)


def _old_modes(file: str, values: Mapping[str, Any]) -> list[str]:
    """Return the poolings of a file of before sentence-transformers 5.4, which has a flag for each.

    Raises ConfigError where it has none at all, or one that is neither true nor false.
    """
    flags = {key.removeprefix(_FLAG): value for key, value in values.items() if key.startswith(_FLAG)}
    if not flags:
        raise ConfigError(
            f"{file} is missing or names no pooling, and {MODULES} has a module for it: "
            "fetch the file, or set pooling_mode in it"
        )
    if wrong := [mode for mode, value in flags.items() if not isinstance(value, bool)]:
        raise ConfigError(f"{file}: {_FLAG}{wrong[0]} ({flags[wrong[0]]!r}) must be true or false")
    chosen = [mode for mode, value in flags.items() if value]
    known = [name for mode, name in _OLD_MODES.items() if mode in chosen]
    return known + [mode for mode in chosen if mode not in _OLD_MODES] or ["mean"]


def inputs(of: str = "sentence_embedding") -> dict[str, str]:
    """Return the keys of a module that reads and writes `of`."""
    return dict.fromkeys(_INPUTS, of)


def dense_layer(folder: Path, name: str, of: str = "sentence_embedding") -> DenseLayer:
    """Return a dense layer of what is called `of`. Raises ConfigError for one that the graph would not have."""
    file = f"{name}/config.json"
    values = read_file(folder, file)
    activation = str(values.get("activation_function") or "Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"{file}: activation_function is {activation}; exported are {' and '.join(_ACTIVATIONS)}"
        )
    check_known(file, values, _DENSE_KEYS, inputs(of))
    if "out_features" not in values:
        raise ConfigError(f"{file} names no out_features")
    return DenseLayer(values["out_features"], _ACTIVATIONS[activation])


def check_known(
    file: str, values: Mapping[str, Any], known: Collection[str], fixed: Mapping[str, Any]
) -> None:
    """Raise ConfigError for a key that is not known and says something, or has another value than the one exported."""
    for key, value in values.items():
        if value and key not in known and value != fixed.get(key):
            exported = f"; exported is {fixed[key]!r}" if key in fixed else ", which is not known"
            raise ConfigError(f"{file}: {key} is {value!r}{exported}")


def _similarity(settings: Mapping[str, Any], normalize: bool) -> str:
    name = settings.get("similarity_fn_name") or "cosine"
    if name not in SIMILARITIES:
        raise ConfigError(
            f"{SETTINGS}: similarity_fn_name is {name!r}, and the service compares by {' or '.join(SIMILARITIES)}: "
            "set it to one of these if that will do"
        )
    return "cosine" if normalize else str(name)  # of vectors of length 1 the two are the same


def read_file(folder: Path, name: str) -> Any:
    """Return the content of a file, {} where there is none."""
    try:
        content = read_json(folder / name)
    except FileNotFoundError:
        return {}
    if not isinstance(content, list if name == MODULES else dict):
        raise ConfigError(f"{name} holds {type(content).__name__}")
    return content
