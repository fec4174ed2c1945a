"""A bundle: the folder that export writes and the service reads. `bundle.json`, `model.onnx`, `tokenizer.json`,
and the graph's embedding tables.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert.errors import BundleError, BundleIntegrityError
from bert.files import MAX_FILE_BYTES, absence, atomic_dir, file_sha256, put_back, read_regular
from bert.manifest import SHA256, Manifest, own_sha256

MANIFEST, MODEL, TOKENIZER = "bundle.json", "model.onnx", "tokenizer.json"
FALLBACK = "fallback.onnx"
"""The float32 graph beside one in 8 bits, where the manifest has a `fallback`."""
LABELS_MODEL, LABELS_TOKENIZER = "labels.onnx", "labels_tokenizer.json"
"""Graph and tokenizer of the labels' encoder, where the manifest has one."""
LABELS_FALLBACK = "labels_fallback.onnx"
"""The float32 graph of the labels' encoder beside one in 8 bits, where its part of the manifest has a `fallback`."""
QUERY_WEIGHTS = "query_weights.bin"
"""Weights of queries' pieces, float32 (V,), where the task has such."""
TABLE_SUFFIX = ".npy"
"""Ending of an embedding table's file; the rest of its name is that of the graph's initializer."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder whose files were found to be those of its manifest."""

    folder: Path
    manifest: Manifest
    verify_hashes: bool = field(default=True, compare=False)
    """`read` compares the hash of a file with the manifest's."""
    graph: str = MODEL
    """File of the graph that `manifest` describes."""

    @property
    def model_path(self) -> Path:
        """The ONNX graph."""
        return self.folder / self.graph

    @property
    def fallback(self) -> "Bundle | None":
        """The bundle with its float32 graph in place of the one in 8 bits; None where it has one graph."""
        if not self.manifest.fallback:
            return None
        graph = LABELS_FALLBACK if self.graph == LABELS_MODEL else FALLBACK
        return replace(self, manifest=self.manifest.of_fallback(), graph=graph)

    @property
    def labels(self) -> "Bundle | None":
        """The bundle as the labels' encoder alone; None where they have none."""
        if not self.manifest.labels_encoder:
            return None
        return replace(self, manifest=self.manifest.of_labels(), graph=LABELS_MODEL)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer's file."""
        return LABELS_TOKENIZER if self._reads_labels else TOKENIZER

    @property
    def _reads_labels(self) -> bool:
        return self.graph in (LABELS_MODEL, LABELS_FALLBACK)

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""
        return self.folder / self.tokenizer

    @property
    def tables(self) -> dict[str, str]:
        """The graph's initializers that lie in files of their own, so that sessions can share them: name → file name."""
        if self._reads_labels:
            return {}
        names = (name for name in self.manifest.files if name.endswith(TABLE_SUFFIX))
        return {name.removesuffix(TABLE_SUFFIX): name for name in names}

    def read(self, name: str) -> bytes:
        """Return the content of one of the bundle's files, as it was when its hash was compared.

        Raises BundleIntegrityError if it is missing or not the file that the manifest describes.
        """
        try:
            content = read_regular(self.folder / name, MAX_FILE_BYTES)
        except OSError as error:
            raise BundleIntegrityError(f"{self.folder / name} cannot be read: {error.strerror}") from None
        if self.verify_hashes:
            _check_hash(self.folder / name, hashlib.sha256(content).hexdigest(), self.manifest.files[name])
        return content


def read_bundle(folder: Path, *, verify_hashes: bool = True) -> Bundle:
    """Read a bundle.

    Raises BundleError if the folder has no bundle or one of another schema, BundleIntegrityError if a file is missing or is
    not the one that the manifest describes, or the manifest itself is not as it was written.
    `verify_hashes=False` only looks whether the files are there.
    """
    file = folder / MANIFEST
    try:
        values = json.loads(read_regular(file).decode("utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; make the bundle with bert-export") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{file} holds {type(values).__name__}, not an object")
    try:
        manifest = Manifest.from_dict(values)
    except BundleError as error:
        raise type(error)(f"{file}: {error}; export the checkpoint again") from None
    if verify_hashes and values[SHA256] != own_sha256(values):
        raise BundleIntegrityError(
            f"{file} was changed since it was written: it has not the {SHA256} that it names; export the "
            "checkpoint again"
        )
    _check_files(folder, manifest, verify_hashes=verify_hashes)
    return Bundle(folder, manifest, verify_hashes)


def creation_time(folder: Path) -> str:
    """Return `created` of the manifest in a folder; "" where there is none, or nothing that can be read."""
    return _value(folder, "created")


def manifest_sha256(folder: Path) -> str:
    """Return the hash that the manifest in a folder gives itself; "" where there is none, or nothing that can be read."""
    return _value(folder, SHA256)


def _value(folder: Path, key: str) -> str:
    try:
        found = json.loads(read_regular(folder / MANIFEST))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Raise BundleError where no bundle can be written: better now than after minutes of work.

    A bundle that a killed export had moved out of its place is put back first.
    """
    if folder.name in ("", ".."):
        raise BundleError(f"{folder} cannot be replaced; name a folder for the bundle, as {folder / 'mine'}")
    try:
        put_back(folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    if folder.exists() and not overwrite:
        raise BundleError(
            f"{folder} is there already, and a bundle never changes; choose another folder, or replace it with "
            "--overwrite"
        )
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not (is_empty or (folder / MANIFEST).is_file()):  # it was named by mistake
        raise BundleError(
            f"{folder} is there and is not a bundle (it has no {MANIFEST}), so it is not replaced"
        )
    parent = next(place for place in folder.absolute().parents if place.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BundleError(f"{folder} cannot be written: {parent} is not a folder that can be written to")


def write_bundle(
    folder: Path, manifest: Manifest, files: Mapping[str, bytes], *, overwrite: bool = False
) -> Bundle:
    """Write a bundle atomically.

    The manifest's `files` is filled in here. Raises BundleError where the folder cannot be written or replaced,
    or if `files` lacks the model or the tokenizer.
    """
    if any(Path(name).name != name or name == MANIFEST for name in files):
        raise BundleError(f"these are not names for a bundle's files: {sorted(files)}")
    with new_bundle(folder, overwrite=overwrite) as aside:
        for name, content in files.items():
            (aside / name).write_bytes(content)
        manifest = finish_bundle(aside, manifest)
    return Bundle(folder, manifest)


@contextmanager
def new_bundle(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes the bundle when the block ends, and goes if it raises.

    Raises BundleError where the folder cannot be written or replaced.
    """
    check_target(folder, overwrite=overwrite)
    made = [place for place in folder.absolute().parents if not place.exists()]
    try:
        with atomic_dir(folder, replace_old=overwrite) as aside:
            yield aside
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        for place in made:
            with suppress(OSError):  # the bundle is in it
                place.rmdir()


def finish_bundle(aside: Path, manifest: Manifest) -> Manifest:
    """Write the manifest beside a bundle's other files, and return it with their hashes in `files`.

    Raises BundleError if the model or the tokenizer is missing.
    """
    names = sorted(file.name for file in aside.iterdir())
    if missing := {MODEL, TOKENIZER} - set(names):
        raise BundleError(f"a bundle holds {MODEL} and {TOKENIZER}; missing is {', '.join(sorted(missing))}")
    manifest = replace(manifest, files={name: file_sha256(aside / name) for name in names})
    text = json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False) + "\n"
    (aside / MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def _check_files(folder: Path, manifest: Manifest, *, verify_hashes: bool) -> None:
    needed = {MODEL, TOKENIZER} | ({FALLBACK} if manifest.fallback else set())
    needed |= {LABELS_MODEL, LABELS_TOKENIZER} if manifest.labels_encoder else set()
    needed |= {LABELS_FALLBACK} if manifest.labels_encoder.get("fallback") else set()
    needed |= {QUERY_WEIGHTS} if manifest.task.query_weights else set()
    for name in needed | set(manifest.files):
        if name not in manifest.files or Path(name).name != name:
            raise BundleIntegrityError(
                f"{folder / MANIFEST} names no sha256 for {name}, or is not a plain file name"
            )
        if not (folder / name).is_file():
            raise BundleIntegrityError(
                f"{folder / name} {absence(folder / name)}; export the checkpoint again"
            )
    if not verify_hashes:
        return
    for name, expected in manifest.files.items():
        try:
            found = file_sha256(folder / name)
        except OSError as error:
            raise BundleIntegrityError(f"{folder / name} cannot be read: {error.strerror}") from None
        _check_hash(folder / name, found, expected)


def _check_hash(file: Path, actual: str, expected: str) -> None:
    if actual != expected:
        raise BundleIntegrityError(
            f"{file} has sha256 {actual}, the manifest says {expected}: the file was changed; "
            "export the checkpoint again"
        )


def _unwritable(folder: Path, error: OSError) -> BundleError:
    return BundleError(f"{folder} cannot be written: {error.strerror or error}")
