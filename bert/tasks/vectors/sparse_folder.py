"""Folders of sentence-transformers' SparseEncoder: what an export follows or refuses. Nothing in them is run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert.errors import ConfigError
from bert.tasks.spec import SPARSE_ACTIVATIONS, TaskSpec
from bert.tasks.vectors.sentence_transformers import (
    LENGTHS,
    MODULES,
    SETTINGS,
    check_known,
    listed_modules,
    max_seq_length,
    read_file,
    read_settings,
    with_prompts,
    write_files,
)

ROUTER = "router_config.json"
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_POOLING_KEYS = {"activation_function", "embedding_dimension", "word_embedding_dimension", "chunk_size"}

Module = tuple[str, str]
"""Kind of a module, and its folder."""


@dataclass(frozen=True, slots=True)
class SparseFolder:
    """Folders of the parts of a SparseEncoder."""

    body: Path
    """The masked language model and its tokenizer."""
    pooling: Path
    query_table: Path | None
    """Module with the weights of queries, where these need no model."""


def is_sparse(folder: Path) -> bool:
    """Tell whether a folder is that of a SparseEncoder, by its own settings or by its modules."""
    if not (folder / MODULES).is_file():
        return False
    kinds = {kind for kind, _ in listed_modules(folder)}
    is_named = read_settings(folder).get("model_type") == "SparseEncoder"
    return is_named or not kinds.isdisjoint(("MLMTransformer", "SpladePooling", "SparseStaticEmbedding"))


def sparse_folder(folder: Path) -> SparseFolder:
    """Return the parts of a SparseEncoder. Raises ConfigError for other modules than SPLADE's and tables of queries."""
    modules, queries = listed_modules(folder), list[Module]()
    if [kind for kind, _ in modules] == ["Router"]:
        queries, modules = _routes(folder, modules[0][1])
    kinds = [kind for kind, _ in modules]
    if len(kinds) != 2 or kinds[0] not in _TRANSFORMERS or kinds[1] != "SpladePooling":
        raise ConfigError(
            f"{MODULES} has the modules {' '.join(kinds)} for documents; exported are Transformer, which fills masks, and "
            "SpladePooling"
        )
    if queries and queries != modules and [kind for kind, _ in queries] != ["SparseStaticEmbedding"]:
        raise ConfigError(
            f"{ROUTER} has the modules {' '.join(kind for kind, _ in queries)} for queries; exported is a "
            "SparseStaticEmbedding alone, or what documents have"
        )
    for _, path in (*modules, *queries):
        if path and Path(path).name != path:
            raise ConfigError(f"{MODULES} or {ROUTER} names {path!r}, which is not a folder beside it")
    table = folder / queries[0][1] if queries and queries != modules else None
    return SparseFolder(folder / modules[0][1], folder / modules[1][1], table)


def honour_sparse(folder: Path, spec: TaskSpec, max_tokens: int) -> TaskSpec:
    """Return the description of sparse vectors with all that a SparseEncoder's folder states.

    Raises ConfigError, with file and value, for what would not be honoured.
    """
    parts = sparse_folder(folder)
    pooling = read_file(parts.pooling, "config.json")
    file = f"{parts.pooling.name}/config.json"
    check_known(file, pooling, _POOLING_KEYS, {"pooling_strategy": "max"})
    activation = pooling.get("activation_function") or "relu"
    if activation not in SPARSE_ACTIVATIONS:
        known = " and ".join(SPARSE_ACTIVATIONS)
        raise ConfigError(f"{file}: activation_function is {activation!r}; exported are {known}")
    longest = max_seq_length(parts.body, "fill-mask", "logits") or max_tokens
    return replace(
        with_prompts(folder, spec),
        sparse_activation=activation,
        query_weights=parts.query_table is not None,
        max_tokens=min(longest, max_tokens),
    )


def write(folder: Path, spec: TaskSpec, vocab_size: int) -> None:
    """Write the files by which sentence-transformers makes of a masked language model the weights that `spec` describes."""
    kinds = (("MLMTransformer", ""), ("SpladePooling", "1_SpladePooling"))
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.sparse_encoder.models.{kind}",
        }
        for number, (kind, path) in enumerate(kinds)
    ]
    pooling = {
        "pooling_strategy": "max",
        "activation_function": spec.sparse_activation,
        "word_embedding_dimension": vocab_size,
    }
    settings = {
        "model_type": "SparseEncoder",
        "prompts": spec.prompts,
        "default_prompt_name": spec.default_prompt_name or None,
        "similarity_fn_name": "dot",
    }
    lengths = {"max_seq_length": spec.max_tokens, "do_lower_case": False}
    write_files(
        folder,
        {MODULES: modules, SETTINGS: settings, LENGTHS: lengths, "1_SpladePooling/config.json": pooling},
    )


def _routes(folder: Path, path: str) -> tuple[list[Module], list[Module]]:
    """Return the modules of queries and of documents. Raises ConfigError for a router with other routes."""
    if path:
        raise ConfigError(f"{MODULES} has the router in {path!r}; it is read in the folder itself")
    config = read_file(folder, ROUTER)
    structure, types = config.get("structure"), config.get("types")
    if not isinstance(structure, Mapping) or not isinstance(types, Mapping):
        raise ConfigError(f"{ROUTER} lacks 'structure' or 'types', which name the modules")
    if set(structure) != {"query", "document"}:
        raise ConfigError(f"{ROUTER} has the routes {', '.join(structure)}; exported are query and document")
    if mappings := (config.get("parameters") or {}).get("route_mappings"):
        raise ConfigError(f"{ROUTER}: route_mappings is {mappings!r}, and none are known")

    def modules(names: Any) -> list[Module]:
        return [(str(types.get(name, "")).rpartition(".")[2], str(name)) for name in names]

    return modules(structure["query"]), modules(structure["document"])
