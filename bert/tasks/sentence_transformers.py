"""Settings of a sentence-transformers folder: those that an export follows, and those that it refuses.

An export that passed over a part of it would give other vectors than the model's.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

MODULES, PROMPTS, LENGTHS = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
UNKNOWN_POOLING = (
    "nothing says how the tokens' vectors become an embedding: their mean is taken; --pooling cls takes [CLS]"
)
# Scaled to length 1, a mean and a sum over the root of the length are the same.
_MODES = {"mean_tokens": "mean", "mean_sqrt_len_tokens": "mean", "cls_token": "cls"}


def honour(folder: Path, spec: TaskSpec, tokenizer: Tokenizer, positions: int) -> TaskSpec:
    """Return the description of embeddings with the pooling and the length that `modules.json` and its like state.

    `positions` are those that the model has. Raises ConfigError, with file and value, for what would not be honoured.
    """
    modules = _modules(folder)
    normalises = any(kind == "Normalize" for kind, _ in modules)
    _check_prompts(_read(folder, PROMPTS), normalises)
    lengths = _read(folder, LENGTHS)
    if lengths.get("do_lower_case") and tokenizer.ids([ascii_uppercase]) != tokenizer.ids([ascii_lowercase]):
        raise ConfigError(
            f"{LENGTHS}: do_lower_case is true, and the tokenizer tells capitals from small letters: "
            "build lower case into the tokenizer, or set it to false"
        )
    longest = lengths.get("max_seq_length") or positions
    if not isinstance(longest, int) or not 3 <= longest <= positions:
        raise ConfigError(
            f"{LENGTHS}: max_seq_length is {longest!r}, and the model has {positions} positions"
        )
    pooling = next((path for kind, path in modules if kind == "Pooling"), None)
    if pooling is None:
        raise ConfigError(f"{MODULES} names no Pooling: its output is no embedding of a text")
    return replace(spec, pooling=_pooling(folder, pooling), max_tokens=longest)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and folder of each module. Raises ConfigError for one that the graph would not have."""
    listed = _read(folder, MODULES)
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise ConfigError(f"{MODULES} is no list of modules")
    modules = [(str(m.get("type", "")).rpartition(".")[2], str(m.get("path", ""))) for m in listed]
    for kind, path in modules:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ConfigError(
                f"{MODULES} has a module {kind!r} ({path}), which is not exported: the embeddings would be others. "
                "Only Transformer, Pooling and Normalize are"
            )
        if kind == "Transformer" and path:
            raise ConfigError(
                f"{MODULES} has the transformer in {path!r}: save the model anew with sentence-transformers 3 or later, "
                "which puts it into the folder itself"
            )
    return modules


def _pooling(folder: Path, name: str) -> str:
    """Return "mean" or "cls". Raises ConfigError for any other pooling."""
    file = f"{name}/config.json"
    values = _read(folder, file)
    prefix = "pooling_mode_"
    modes = [
        key.removeprefix(prefix) for key, value in values.items() if key.startswith(prefix) and value is True
    ]
    modes = modes or [{"mean": "mean_tokens", "cls": "cls_token"}.get(m, str(m)) for m in _listed(values)]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ConfigError(
            f"{file}: the pooling is {' and '.join(modes) or 'not stated'}; exported are mean_tokens and cls_token alone"
        )
    return _MODES[modes[0]]


def _listed(values: Mapping[str, Any]) -> list[Any]:
    mode = values.get("pooling_mode", [])
    return list(mode) if isinstance(mode, list | tuple) else [mode]


def _check_prompts(values: Mapping[str, Any], normalises: bool) -> None:
    name = values.get("default_prompt_name")
    if name and (values.get("prompts") or {}).get(name):
        raise ConfigError(
            f"{PROMPTS}: default_prompt_name is {name!r}, and the service puts no prompt before a text: "
            "set it to null, and send texts with their prompt"
        )
    compared = values.get("similarity_fn_name") or "cosine"
    if compared != "cosine" and not (compared == "dot" and normalises):
        raise ConfigError(
            f"{PROMPTS}: similarity_fn_name is {compared!r}, and the service compares by cosine, of vectors of length 1: "
            "set it to cosine if that will do"
        )


def prompts_of(folder: Path) -> dict[str, str]:
    """Return the prompts that a caller has to put before texts, by name."""
    prompts = _read(folder, PROMPTS).get("prompts") or {}
    return {name: text for name, text in prompts.items() if text} if isinstance(prompts, dict) else {}


def _read(folder: Path, name: str) -> Any:
    """Return the content of a file, {} where there is none."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{name} cannot be read: {error}") from None
    if not isinstance(content, list if name == MODULES else dict):
        raise ConfigError(f"{name} holds {type(content).__name__}")
    return content
