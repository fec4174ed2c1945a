"""Checkpoint folders as numpy weights under one set of names; adapters are merged on the way. No torch."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.checkpoint import hub, lora
from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.tensor_names import Weights, bert_weights, check_shapes, is_weight
from bert.checkpoint.torch_files import read_torch_file, widen_bfloat16
from bert.checkpoint.weight_files import PICKLED, WEIGHTS, has_weights, weight_files
from bert.config import BertConfig, read_values
from bert.errors import CheckpointError, ConfigError
from bert.tasks.hub_config import UNKNOWN_PAIR, reads_pairs, spec_from_config
from bert.tasks.registry import TASKS
from bert.tasks.sentence_transformers import MODULES, UNKNOWN_POOLING, honour, prompts_of
from bert.tasks.spec import TaskSpec
from bert.tasks.task import Head
from bert.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """All that an export needs of a checkpoint."""

    config: BertConfig
    spec: TaskSpec
    weights: Weights
    """Float32 weights by BERT's names in Hugging Face's files, the encoder's prefixed `bert.`; adapters are merged."""
    tokenizer: Tokenizer
    sources: dict[str, Any]
    """`files`, by name and sha256, `hub` (repository and commit), and `base` likewise: what a bundle was made from."""
    remarks: tuple[str, ...] = ()
    """Assumptions about the checkpoint, a sentence each."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Facts that a user states about a checkpoint; None takes what the checkpoint says."""

    pair: bool | None = None
    pooling: str | None = None


def read_checkpoint(folder: Path, base: Path | str | None = None, stated: Stated | None = None) -> Checkpoint:
    """Read a fine-tuned checkpoint: a full one, a LoRA adapter, or a `task.json` that names a base as it is.

    `base` says where the adapter's base is; by default `task.json` or `adapter_config.json` names it. Its weights must
    have the hash that `task.json` records, if it does. Raises CheckpointError for what is missing or does not fit
    together, and for a part of the model that would be passed over.
    """
    stated = stated or Stated()
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is no folder; give the one that bert-finetune wrote, or one of the hub's"
        )
    if base is not None and has_weights(folder):
        raise CheckpointError(
            f"{folder} holds whole weights, and a base ({base}) is for adapters: leave it out"
        )
    try:
        checkpoint = _read_full(folder, stated) if has_weights(folder) else _read_with_base(folder, base)
        _check_stated(checkpoint.spec, stated)
        check_shapes(checkpoint.weights, checkpoint.config, checkpoint.spec)
        checkpoint.config.check_fits(checkpoint.tokenizer.vocab_size, checkpoint.spec.max_tokens)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    return checkpoint


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files that make a checkpoint, by name; those of its modules' folders among them."""
    suffixes = (".json", ".safetensors", ".txt", ".model")
    places = (folder, *folder.glob("[0-9]*_*/"))
    files = {
        file for place in places for file in place.iterdir() if file.suffix in suffixes and file.is_file()
    }
    if has_weights(folder):
        files |= set(weight_files(folder))
    return {file.relative_to(folder).as_posix(): _sha256(file) for file in sorted(files)}


def read_weights(folder: Path) -> Weights:
    """Read the folder's weights, whole or in shards, as float32 under BERT's names."""
    weights: Weights = {}
    for file in weight_files(folder):
        tensors = read_torch_file(file) if file.suffix == ".bin" else read_safetensors(file)
        weights |= {key: value for key, value in tensors.items() if is_weight(key)}
    return bert_weights(weights, folder)


def read_safetensors(file: Path) -> Weights:
    """Read one file's tensors as float32; whole numbers are left out. Raises CheckpointError."""
    # Imported here: the service shares this package and has no safetensors.
    import safetensors

    try:
        tensors = safetensors.deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from None
    found: Weights = {}
    for key, tensor in tensors:
        if tensor["dtype"] in _TO_FLOAT32:
            found[key] = _TO_FLOAT32[tensor["dtype"]](tensor["data"]).reshape(tensor["shape"])
    return found


def _read_with_base(folder: Path, base: Path | str | None) -> Checkpoint:
    if (folder / "features.json").is_file():
        raise CheckpointError(f"{folder} holds a BiLSTM over frozen features: it probes an encoder, no more")
    is_adapter = (folder / lora.ADAPTER_CONFIG).is_file()
    if not is_adapter and not (folder / "task.json").is_file():
        raise CheckpointError(
            f"{folder} holds none of {WEIGHTS}, {PICKLED}, {lora.ADAPTER_CONFIG} and task.json"
        )
    spec = TaskSpec.read(folder)
    adapter_config = lora.read_adapter_config(folder) if is_adapter else {}
    recorded = spec.base.get("name"), adapter_config.get("base_model_name_or_path")
    name = str(base or recorded[0] or recorded[1] or "")
    if not name:
        raise CheckpointError(f"{folder}/task.json names no base; say where it is with --base")
    revision = spec.base.get("commit") or adapter_config.get("revision") if name in recorded else None
    base_folder = resolve_base(name, spec.base.get("sha256"), revision)
    whole = _read_base(base_folder, spec)
    base_name = spec.base.get("name") or Path(name).name
    sources = {**_sources(folder), "base": {"name": base_name, **whole.sources}}
    if not is_adapter:
        _check_pooling(base_folder, whole)
        return replace(whole, sources=sources)
    adapter = read_safetensors(folder / lora.ADAPTER_WEIGHTS)
    merged = lora.merge(whole.weights, adapter, adapter_config, whole.config.family)
    return replace(whole, weights=merged, sources=sources)


def _read_full(folder: Path, stated: Stated) -> Checkpoint:
    if (folder / "task.json").is_file():
        checkpoint = _read_base(folder, TaskSpec.read(folder))
        _check_pooling(folder, checkpoint)
        return checkpoint
    values = read_values(folder)
    config = BertConfig.from_dict(values)
    values = config.family.bert_config(values)
    spec = spec_from_config(values, config.max_position_embeddings)
    return _described(folder, _read_base(folder, spec), values, stated)


def _read_base(folder: Path, spec: TaskSpec) -> Checkpoint:
    """Read a folder of whole weights, whatever it says of its task."""
    config, tokenizer = BertConfig.read(folder), Tokenizer.load(folder)
    return Checkpoint(config, spec, read_weights(folder), tokenizer, _sources(folder))


def _sources(folder: Path) -> dict[str, Any]:
    origin = hub.origin(folder)
    return {"files": file_hashes(folder), **({"hub": origin} if origin else {})}


def _described(folder: Path, checkpoint: Checkpoint, values: dict[str, Any], stated: Stated) -> Checkpoint:
    """Return a checkpoint without `task.json` with what its other files, or the user, say of pairs and pooling."""
    spec, remarks = checkpoint.spec, []
    task = TASKS[spec.task]
    if task.may_read_pairs:
        pair = reads_pairs(values, spec.labels, stated.pair)
        remarks += [UNKNOWN_PAIR] if pair is None else []
        spec = replace(spec, pair=bool(pair))
    if task.head is Head.EMBEDDING and (folder / MODULES).is_file():
        spec = honour(folder, spec, checkpoint.tokenizer, checkpoint.config.max_position_embeddings)
        remarks += (
            [f"texts have to be sent with their prompt: {prompts}"] if (prompts := prompts_of(folder)) else []
        )
    elif task.head is Head.EMBEDDING:
        remarks += [UNKNOWN_POOLING] if stated.pooling is None else []
        spec = replace(spec, pooling=stated.pooling or "mean")
    return replace(checkpoint, spec=spec, remarks=tuple(remarks))


def _check_stated(spec: TaskSpec, stated: Stated) -> None:
    task = TASKS[spec.task]
    fits = {"pair": task.may_read_pairs, "pooling": task.head is Head.EMBEDDING}
    for name, of in (("pair", "classification"), ("pooling", "similarity")):
        said, found = getattr(stated, name), getattr(spec, name)
        if said is not None and not fits[name]:
            raise ConfigError(f"{name} is said of {of}, and the task is {spec.task}")
        if said is not None and said != found:
            raise ConfigError(
                f"{name} is {found!r} by the checkpoint's own files, and {said!r} was asked for"
            )


def _check_pooling(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise ConfigError where `task.json` has embeddings pooled otherwise than sentence-transformers would."""
    spec = checkpoint.spec
    if TASKS[spec.task].head is Head.EMBEDDING and (folder / MODULES).is_file():
        own = honour(folder, spec, checkpoint.tokenizer, checkpoint.config.max_position_embeddings)
        if own.pooling != spec.pooling:
            raise ConfigError(
                f"task.json has pooling {spec.pooling!r}, and {folder / MODULES} {own.pooling!r}: make them agree"
            )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_TO_FLOAT32: dict[str, Callable[[bytes], NDArray[np.float32]]] = {
    "F64": lambda data: np.frombuffer(data, np.float64).astype(np.float32),
    "F32": lambda data: np.frombuffer(data, np.float32),
    "F16": lambda data: np.frombuffer(data, np.float16).astype(np.float32),
    "BF16": lambda data: widen_bfloat16(np.frombuffer(data, np.uint16)),
}
