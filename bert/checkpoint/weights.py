"""Checkpoint folders as numpy weights under one set of names; adapters are merged on the way. No torch."""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.bodies.body import SEGMENTS
from bert.checkpoint import cached_files, lora
from bert.checkpoint.base_models import resolve_base
from bert.checkpoint.description import Stated, describe, longest, overruled
from bert.checkpoint.gliclass import is_gliclass, read_gliclass
from bert.checkpoint.gliner import GLINER_CONFIG, LABELS_TOKENIZER, base_folder, is_gliner, read_gliner
from bert.checkpoint.sparse import query_weights
from bert.checkpoint.tensor_names import LSTM, Weights, bert_weights, check_shapes, dense_name
from bert.checkpoint.torch_files import read_torch_file, widen_bfloat16
from bert.checkpoint.weight_files import PICKLED, WEIGHTS, has_weights, weight_files
from bert.config import BertConfig, read_values, remark_on_code
from bert.errors import CheckpointError, ConfigError
from bert.files import MAX_FILE_BYTES, MAX_TEXT_BYTES, absence, file_sha256, open_regular, read_object
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tasks.vectors import token_folders
from bert.tasks.vectors.sentence_transformers import MODULES, dense_folders, honour, is_embedder, lower_cased
from bert.tasks.vectors.sparse_folder import honour_sparse, is_sparse, sparse_folder
from bert.tasks.vectors.token_folders import STANFORD_LAYER
from bert.text.tokenizer_files import remarks_on
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
    labels: "Checkpoint | None" = None
    """The encoder of labels, where these have one of their own."""


def read_checkpoint(folder: Path, base: Path | str | None = None, stated: Stated | None = None) -> Checkpoint:
    """Read a fine-tuned checkpoint: a full one, a LoRA adapter, or a `task.json` that names a base as it is.

    `base` says where the adapter's base is; by default `task.json` or `adapter_config.json` names it. Its weights must
    have the hash that `task.json` records, if it does. Raises CheckpointError for what is missing or does not fit
    together, and for a part of the model that would be passed over.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; give the one that bert-finetune wrote, or one of the hub's"
        )
    if base is not None and has_weights(folder):
        raise CheckpointError(
            f"{folder} holds whole weights, and a base ({base}) is for adapters: leave it out"
        )
    stated = stated or Stated()
    try:
        list(_files(folder))  # refuses what is not a regular file
        if is_sparse(folder) and not (folder / "task.json").is_file():
            checkpoint = _read_sparse(folder)
        else:
            checkpoint = _read_full(folder, stated) if has_weights(folder) else _read_with_base(folder, base)
        spec, remarks = overruled(checkpoint.spec, stated)
        checkpoint = replace(checkpoint, spec=spec, remarks=(*checkpoint.remarks, *remarks))
        for part in filter(None, (checkpoint, checkpoint.labels)):
            check_shapes(part.weights, part.config, part.spec)
            tokenizer = part.tokenizer
            part.config.check_fits(tokenizer.highest_id() + 1, part.spec.max_tokens, tokenizer.segments)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    return checkpoint


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of the files that make a checkpoint, by name; those of its modules' folders among them."""
    files = {file for file in _files(folder) if file.parent != folder or file.suffix != ".bin"}
    if has_weights(folder):
        files |= set(weight_files(folder))
    if (pickled := folder / lora.ADAPTER_PICKLED).is_file():
        files.add(pickled)
    limits = {".safetensors": MAX_FILE_BYTES, ".bin": MAX_FILE_BYTES}
    return {
        file.relative_to(folder).as_posix(): file_sha256(file, limits.get(file.suffix, MAX_TEXT_BYTES))
        for file in sorted(files)
    }


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint and of its modules' folders. Raises CheckpointError for irregular files."""
    modules = (place for pattern in _MODULE_FOLDERS for place in folder.glob(pattern))
    for place in (folder, *modules):
        for file in place.iterdir():
            if file.suffix in (".json", ".safetensors", ".txt", ".model", ".bin", ".metadata"):
                if not file.is_file():  # else it would be taken for absent
                    raise CheckpointError(f"{file} {absence(file)}, and only regular files are read")
                yield file


def read_weights(folder: Path) -> Weights:
    """Read the folder's weights, whole or in shards, as float32 under BERT's names."""
    weights = _read_files(folder)
    return read_gliner(folder, weights)[0][2] if is_gliner(folder) else bert_weights(weights, folder)


def _read_file(file: Path) -> Weights:
    return read_torch_file(file) if file.suffix == ".bin" else read_safetensors(file)


def read_safetensors(file: Path) -> Weights:
    """Read one file's tensors as float32; whole numbers are left out. Raises CheckpointError."""
    # Imported here: the service shares this package and has no safetensors.
    import safetensors

    try:
        with open_regular(file, MAX_FILE_BYTES) as stream:
            mapped = _MappedFile(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            mapped.file, mapped.state = file, _state(os.fstat(stream.fileno()))
        content = np.frombuffer(mapped, np.uint8)
        with safetensors.safe_open(file, framework="numpy"):  # checks the header; its tensors would be copies
            start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header, data = json.loads(content[8:start].tobytes()), content[start:]
        for key, tensor in header.items():
            if (dtype := tensor.get("dtype", "I8")) not in _TO_FLOAT32 and not dtype.startswith(_WHOLE):
                raise CheckpointError(f"{file}: tensor {key!r} is of type {dtype}, which is not read")
        return {
            key: _TO_FLOAT32[tensor["dtype"]](data[slice(*tensor["data_offsets"])]).reshape(tensor["shape"])
            for key, tensor in header.items()
            if tensor.get("dtype") in _TO_FLOAT32
        }
    except MemoryError:
        raise CheckpointError(f"{file} does not fit into the memory") from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:  # numpy has at most 64 dimensions
        raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from None


def release_pages(weights: Weights) -> None:
    """Give back the memory of the weights that are mapped from files; they are read from there when they are needed.

    They must not have been written to.
    """
    for mapped in _mapped_files(weights):
        mapped.madvise(mmap.MADV_DONTNEED)


def check_unchanged(weights: Weights) -> None:
    """Raise CheckpointError if a file that weights are mapped from is not as it was: then they are not, either."""
    for mapped in _mapped_files(weights):
        try:
            is_same = _state(mapped.file.stat()) == mapped.state
        except OSError:
            is_same = False
        if not is_same:
            raise CheckpointError(f"{mapped.file} was changed while it was exported; export it again")


class _MappedFile(mmap.mmap):
    """A file in memory, and what it was when it was read."""

    file: Path
    state: tuple[int, int]


def _state(file: os.stat_result) -> tuple[int, int]:
    return file.st_size, file.st_mtime_ns


def _mapped_files(weights: Weights) -> set[_MappedFile]:
    files = set[_MappedFile]()
    for weight in weights.values():
        memory: Any = weight
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, _MappedFile):
            files.add(memory.obj)
    return files


def _read_with_base(folder: Path, base: Path | str | None) -> Checkpoint:
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
    list(_files(base_folder))
    whole = _read_whole(base_folder, spec)
    base_name = spec.base.get("name") or Path(name).name
    sources = {**_sources(folder), "base": {"name": base_name, **whole.sources}}
    if not is_adapter:
        _check_pooling(base_folder, whole)
        return replace(whole, sources=sources)
    names = (lora.ADAPTER_WEIGHTS, lora.ADAPTER_PICKLED)
    adapter = _read_file(folder / next((name for name in names if (folder / name).is_file()), names[0]))
    config = whole.config
    merged = lora.merge(whole.weights, adapter, adapter_config, config.family, config.num_attention_heads)
    segments = merged.get(SEGMENTS)
    if segments is not None and config.has_segments:  # an adapter may have a table of its own
        config = replace(config, type_vocab_size=len(segments))
    return replace(whole, config=config, weights=merged, sources=sources)


def _read_files(folder: Path) -> Weights:
    """Return the tensors of all files of weights, under their own names."""
    return {name: tensor for file in weight_files(folder) for name, tensor in _read_file(file).items()}


def _read_gliner(folder: Path) -> Checkpoint:
    tensors = _read_files(folder)
    texts, labels = read_gliner(folder, tensors)
    values, sources = read_object(folder / GLINER_CONFIG), _sources(folder)
    if (base := base_folder(folder, values)) is not None:
        sources["base"] = _sources(base)
    if labels is None:
        return Checkpoint(*texts, sources)
    base = base_folder(folder, values, of_labels=True)
    sources["labels"] = _sources(folder / LABELS_TOKENIZER if base is None else base)
    has_lstm = any(name.startswith(LSTM) for name in tensors)
    remark = "the LSTM over the words is passed over, as gliner 0.2.29 does in a bi-encoder"
    return Checkpoint(*texts, sources, (remark,) * has_lstm, labels=Checkpoint(*labels, {}))


def _read_full(folder: Path, stated: Stated) -> Checkpoint:
    if is_gliner(folder):
        return _read_gliner(folder)
    if is_gliclass(folder):
        return Checkpoint(*read_gliclass(folder, _read_files(folder)), _sources(folder))
    if (folder / "task.json").is_file():
        checkpoint = _read_whole(folder, TaskSpec.read(folder))
        _check_pooling(folder, checkpoint)
        return checkpoint
    values = read_values(folder)
    config, weights = BertConfig.from_dict(values), read_weights(folder)
    spec, remarks = describe(folder, config, values, weights, stated)
    checkpoint = _with_weights(folder, spec, config, weights)
    return replace(checkpoint, remarks=(*remarks, *checkpoint.remarks))


def _read_sparse(folder: Path) -> Checkpoint:
    """Read a SparseEncoder, whose masked language model may lie in a folder of its own."""
    parts = sparse_folder(folder)
    config, weights = BertConfig.read(parts.body), read_weights(parts.body)
    length = longest(parts.body, config.max_position_embeddings)
    spec = honour_sparse(folder, TaskSpec("sparse", similarity="dot"), length)
    tokenizer = lower_cased(parts.body, Tokenizer.load(parts.body))
    if (table := parts.query_table) is not None:
        tensors = _read_files(table) if has_weights(table) else {}
        weights |= query_weights(table, tensors, tokenizer, config.vocab_size)
    return Checkpoint(config, spec, weights, tokenizer, _sources(folder), remarks_on(parts.body))


def _read_whole(folder: Path, spec: TaskSpec) -> Checkpoint:
    """Read a folder of whole weights, whatever it says of its task."""
    return _with_weights(folder, spec, BertConfig.read(folder), read_weights(folder))


def _sources(folder: Path) -> dict[str, Any]:
    hashes, origin = file_hashes(folder), cached_files.origin(folder)
    cached_files.check_whole(folder, hashes, hashes)
    return {"files": hashes, **({"hub": origin} if origin else {})}


def _with_weights(folder: Path, spec: TaskSpec, config: BertConfig, weights: Weights) -> Checkpoint:
    tokenizer, remarks = Tokenizer.load(folder).with_letter_shapes(spec.letter_shapes), remarks_on(folder)
    if TASKS[spec.task].has_dense and is_embedder(folder):
        own, tokenizer = tokenizer, lower_cased(folder, tokenizer)
        remarks = remarks if tokenizer is own else ()
        find = dense_folders if spec.token_vectors is None else token_folders.dense_folders
        weights |= _dense_weights(find(folder)) if spec.dense else {}
    elif spec.token_vectors is not None:
        weights |= _dense_tensors(folder, 0, {STANFORD_LAYER: weights.pop(STANFORD_LAYER)})
    remarks = (*remark_on_code(read_values(folder)), *remarks)
    return Checkpoint(config, spec, weights, tokenizer, _sources(folder), remarks)


def _dense_weights(layers: Sequence[Path]) -> Weights:
    """Read dense layers."""
    found: Weights = {}
    for number, layer in enumerate(layers):
        found |= _dense_tensors(layer, number, _read_files(layer))
    return found


def _dense_tensors(layer: Path, number: int, tensors: Weights) -> Weights:
    """Return a dense layer's tensors by their names here; one without a bias has a bias of zeros."""
    if other := sorted(tensors.keys() - {"linear.weight", "linear.bias"}):
        raise CheckpointError(f"{layer} has the tensor {other[0]!r}, which a linear layer lacks")
    weight = tensors.get("linear.weight")
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{layer} has no matrix 'linear.weight'")
    bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
    return {f"{dense_name(number)}.weight": weight, f"{dense_name(number)}.bias": bias}


def _check_pooling(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise ConfigError where `task.json` pools embeddings in another way than sentence-transformers would."""
    spec = checkpoint.spec
    if not TASKS[spec.task].embeds or not is_embedder(folder):
        return
    own = honour(folder, spec, checkpoint.config.max_position_embeddings)
    said = spec
    if spec.normalize and not own.dense:  # at length 1 a mean is a sum over the root of the length
        own, said = (
            replace(each, pooling=each.pooling.replace("mean_sqrt_len_tokens", "mean"))
            for each in (own, spec)
        )
    for name in ("pooling", "dense"):
        if getattr(own, name) != getattr(said, name):
            raise ConfigError(
                f"task.json has {name} {getattr(spec, name)!r}, and {folder / MODULES} {getattr(own, name)!r}: "
                "make them agree"
            )


_MODULE_FOLDERS = ("[0-9]*_*/", "query_*/", "document_*/")
"""Folders of the modules of sentence-transformers, those of a router's routes among them."""
_WHOLE = ("I", "U", "BOOL")
"""Beginnings of the types of whole numbers."""
_TO_FLOAT32: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "F64": lambda data: data.view(np.float64).astype(np.float32),
    "F32": lambda data: np.require(data.view(np.float32), requirements="A"),  # a header may have any length
    "F16": lambda data: data.view(np.float16).astype(np.float32),
    "BF16": lambda data: widen_bfloat16(data.view(np.uint16)),
}
