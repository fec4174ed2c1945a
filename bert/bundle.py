"""A bundle: the folder that export writes and the service reads. `bundle.json`, `model.onnx`, `tokenizer.json`."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bert.errors import BundleError, BundleIntegrityError, ConfigError
from bert.tasks.spec import TaskSpec

SCHEMA_VERSION = 1
MANIFEST, MODEL, TOKENIZER = "bundle.json", "model.onnx", "tokenizer.json"
PRECISIONS = ("fp32", "fp16", "int8")
LAYOUTS = ("rows", "flat")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `bundle.json` says of the model beside it."""

    name: str
    version: str
    task: TaskSpec
    precision: str
    layout: str
    """"rows": packed rows, an attention bias made in the graph (CPU). "flat": one row, packed attention (CUDA)."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    session: dict[str, Any] = field(default_factory=dict)
    """How to open the graph so that what was verified is what runs: `graph_optimization_level` (a member of
    onnxruntime.GraphOptimizationLevel) and `providers`, in order."""
    packing: dict[str, int] = field(default_factory=dict)
    """Where texts may lie in a row so that answers are bit for bit those of a text alone: `align_tokens`, every start
    is a multiple of it; `block_tokens`, a text crosses no multiple of it unless it starts at one (0: it may)."""
    files: dict[str, str] = field(default_factory=dict)
    """File name → sha256, every file of the bundle but `bundle.json`."""
    parity: dict[str, Any] = field(default_factory=dict)
    """What was compared with the checkpoint, and how far it was apart."""
    dev_score: dict[str, Any] = field(default_factory=dict)
    """Score on labelled data before and after export; empty where no data was given."""
    fused_operators: dict[str, int] = field(default_factory=dict)
    """"domain.Operator" → how many; `com.microsoft` only."""
    source: dict[str, Any] = field(default_factory=dict)
    """The checkpoint's files by name and sha256, its base among them."""
    made_by: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Raise BundleError for a value that breaks a rule."""
        if self.schema_version != SCHEMA_VERSION:
            raise BundleError(f"schema_version is {self.schema_version}; this version reads {SCHEMA_VERSION}")
        if self.precision not in PRECISIONS:
            raise BundleError(f"precision is {self.precision!r}; known are {', '.join(PRECISIONS)}")
        if self.layout not in LAYOUTS:
            raise BundleError(f"layout is {self.layout!r}; known are {', '.join(LAYOUTS)}")
        if self.task.max_tokens > self.max_position_embeddings:
            raise BundleError(
                f"max_tokens ({self.task.max_tokens}) must be at most max_position_embeddings "
                f"({self.max_position_embeddings})"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Manifest":
        """Build from the content of a `bundle.json`; raises BundleError for missing or unknown keys."""
        if values.get("schema_version") != SCHEMA_VERSION:  # first: another schema has other keys
            raise BundleError(
                f"schema_version is {values.get('schema_version')!r}; this version reads {SCHEMA_VERSION}"
            )
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise BundleError(f"unknown keys {sorted(unknown)}")
        try:
            return cls(**{**values, "task": TaskSpec.from_dict(values["task"])})
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"the manifest is incomplete or damaged: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a `bundle.json`."""
        # `replace` keeps asdict from walking into the spec, which knows best how it is written.
        return {**asdict(self), "task": self.task.to_dict()}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder whose files were found to be those of its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def model_path(self) -> Path:
        """The ONNX graph."""
        return self.folder / MODEL

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER


def read_bundle(folder: Path, *, verify_hashes: bool = True) -> Bundle:
    """Read a bundle.

    Raises BundleError if the folder is none or of another schema, BundleIntegrityError if a file is missing or is
    not the one that the manifest describes. `verify_hashes=False` only looks whether the files are there.
    """
    file = folder / MANIFEST
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; make the bundle with bert-export") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{file} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{file} holds {type(values).__name__}, not an object")
    try:
        manifest = Manifest.from_dict(values)
    except BundleError as error:
        raise BundleError(f"{file}: {error}; export the checkpoint again") from None
    _check_files(folder, manifest, verify_hashes=verify_hashes)
    return Bundle(folder, manifest)


def write_bundle(
    folder: Path, manifest: Manifest, files: Mapping[str, bytes], *, overwrite: bool = False
) -> Bundle:
    """Write a bundle aside, sync it to the disk, and rename it into place, so that no half of one is ever seen.

    The manifest's `files` is filled in here. Raises BundleError if the folder is there already and not `overwrite`,
    or if `files` lacks the model or the tokenizer.
    """
    missing = {MODEL, TOKENIZER} - set(files)
    if missing:
        raise BundleError(f"a bundle holds {MODEL} and {TOKENIZER}; missing is {', '.join(sorted(missing))}")
    if any(Path(name).name != name or name == MANIFEST for name in files):
        raise BundleError(f"these are no names for a bundle's files: {sorted(files)}")
    if folder.exists() and not overwrite:
        raise BundleError(f"{folder} is there already, and a bundle never changes; choose another folder")
    manifest = replace(manifest, files={n: hashlib.sha256(files[n]).hexdigest() for n in sorted(files)})
    text = json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False) + "\n"
    with _written_aside(folder) as aside:
        for name, content in files.items():
            _write_synced(aside / name, content)
        _write_synced(aside / MANIFEST, text.encode("utf-8"))
        _sync(aside)
        _move_into_place(aside, folder)
    return Bundle(folder, manifest)


def _check_files(folder: Path, manifest: Manifest, *, verify_hashes: bool) -> None:
    for name in {MODEL, TOKENIZER} | set(manifest.files):
        if name not in manifest.files or Path(name).name != name:
            raise BundleIntegrityError(
                f"{folder / MANIFEST} names no sha256 for {name}, or is no plain file name"
            )
        if not (folder / name).is_file():
            raise BundleIntegrityError(f"{folder / name} is missing; export the checkpoint again")
    if not verify_hashes:
        return
    for name, expected in manifest.files.items():
        with (folder / name).open("rb") as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        if actual != expected:
            raise BundleIntegrityError(
                f"{folder / name} has sha256 {actual}, the manifest says {expected}: the file was changed; "
                "export the checkpoint again"
            )


@contextmanager
def _written_aside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder`; whatever happens, it is gone afterwards."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.partial-"
    for left in folder.parent.glob(f"{prefix}*"):  # of a process that was killed outright
        if not _is_running(left.name.removeprefix(prefix)):
            shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f"{prefix}{os.getpid()}")
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # it runs, under another user
        return True
    return True


def _move_into_place(aside: Path, folder: Path) -> None:
    # A folder that is not empty cannot be renamed over: the old one steps aside first, and back if the rename fails.
    old = aside.with_name(f"{aside.name}-old")
    had_old = folder.exists()
    if had_old:
        folder.rename(old)
    try:
        aside.rename(folder)
    except BaseException:
        if had_old:
            old.rename(folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write_synced(file: Path, content: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
