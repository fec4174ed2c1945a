"""Files of `torch.save` as numpy arrays, without torch: the zip format of torch 1.6 and later, and the one before."""

import io
import os
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert.checkpoint import restricted_pickle
from bert.checkpoint.restricted_pickle import BFLOAT16, MAX_PICKLE_BYTES, Storage, StoredTensor
from bert.checkpoint.tensor_names import Weights
from bert.errors import CheckpointError

_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_MAX_DIRECTORY_BYTES = 4 << 20
"""Maximum length of a zip file's list of members; BERT large's has some 50 kB."""
_FLOATS = ("float64", "float32", "float16", BFLOAT16)

_Bytes = NDArray[np.uint8]


def read_torch_file(file: Path) -> Weights:
    """Read a `state_dict` as float32; whole numbers are left out. Tensors that share their values share an array.

    Nothing that the file names is imported or called. Raises CheckpointError for anything but a plain dict of tensors.
    """
    try:
        content: _Bytes = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8)
        is_zip = bytes(content[:4]) == b"PK\x03\x04"
        values, starts = (_read_zip if is_zip else _read_legacy)(file, content)
        return _read_tensors(content, _state_dict(values), starts)
    except CheckpointError as error:
        raise CheckpointError(f"{file} {error}") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def widen_bfloat16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return bfloat16 values, which are the upper halves of float32 values, as float32."""
    wide = values.astype(np.uint32, order="C")
    wide <<= 16
    return wide.view(np.float32)


def _state_dict(values: Any) -> dict[str, StoredTensor]:
    if not isinstance(values, dict):
        raise CheckpointError(f"holds a {type(values).__name__}, not a dict of tensors")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, StoredTensor):
            name = repr(key[:80]) if isinstance(key, str) else "a number"
            raise CheckpointError(
                f"holds a {type(value).__name__} under {name}, where a tensor by its name is expected: "
                "save the model's state_dict() alone"
            )
    return values


def _read_tensors(
    content: _Bytes, tensors: Mapping[str, StoredTensor], starts: Mapping[str, tuple[int, int]]
) -> Weights:
    """Copy the values out of the file. `starts` has each storage's first byte and length in bytes by its key."""
    views: dict[StoredTensor, NDArray[np.float32]] = {}
    weights: Weights = {}
    values = 0
    for name, tensor in tensors.items():
        start, length = starts.get(tensor.storage.key, (0, -1))
        if tensor.storage.nbytes > length:
            raise CheckpointError(
                f"has no {tensor.storage.nbytes:,} bytes for {name[:80]!r}: it is cut off or damaged"
            )
        if tensor.storage.dtype not in _FLOATS:
            continue
        if tensor not in views:
            values += tensor.numel
            if values > len(content):  # many views of one storage
                raise CheckpointError("has tensors of more values than the file has bytes")
            views[tensor] = _read_tensor(content, tensor, start)
        weights[name] = views[tensor]
    return weights


def _read_tensor(content: _Bytes, tensor: StoredTensor, start: int) -> NDArray[np.float32]:
    if not tensor.numel:
        return np.empty(tensor.shape, np.float32)
    dtype = tensor.storage.stored_dtype
    # The stride of a dimension of one is never used, and may be any number.
    strides = [
        stride * dtype.itemsize if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.strides, strict=True)
    ]
    first = start + tensor.offset * dtype.itemsize
    view: NDArray[Any] = np.ndarray(tensor.shape, dtype, content, first, strides)
    return widen_bfloat16(view) if tensor.storage.dtype == BFLOAT16 else view.astype(np.float32, order="C")


def _read_zip(file: Path, content: _Bytes) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Return the pickle's value and where the storages lie."""
    try:
        with _DirectoryReader(file) as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise CheckpointError(f"is a damaged zip file: {error}") from None
    names = [member.filename for member in members if member.filename.endswith("/data.pkl")]
    if len(names) != 1:
        raise CheckpointError(f"is a zip file with {len(names)} data.pkl, not one that torch.save wrote")
    prefix = names[0].removesuffix("data.pkl")
    found = {
        member.filename.removeprefix(prefix): _place(content, member)
        for member in members
        if member.filename.startswith(prefix)
    }
    start, length = found.get("byteorder", (0, 0))
    if bytes(content[start : start + min(length, 8)]) not in (b"", b"little"):
        raise CheckpointError("was written on a big-endian machine; only little-endian files are read")
    value, _ = _unpickle(content, *found["data.pkl"])
    places = {name.removeprefix("data/"): place for name, place in found.items() if name.startswith("data/")}
    return value, places


class _DirectoryReader(io.FileIO):
    """A zip file whose list of members is read only where it is short: each takes memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if size > _MAX_DIRECTORY_BYTES:
            raise CheckpointError(f"is a zip file whose list of members takes {size:,} bytes")
        return super().read(size) or b""


def _place(content: _Bytes, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Return the first byte and the length of a member, which torch never compresses."""
    name = member.filename[:80]
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise CheckpointError(
            f"has {name!r} compressed or encrypted, which torch.save never does: save it anew"
        )
    header = bytes(content[member.header_offset : member.header_offset + 30])
    if member.header_offset < 0 or len(header) < 30 or not header.startswith(b"PK\x03\x04"):
        raise CheckpointError(f"is a damaged zip file: {name!r} is not where its list of members says")
    # The local header repeats the name, and torch pads the extra field to align the values.
    start = member.header_offset + 30 + int.from_bytes(header[26:28], "little")
    start += int.from_bytes(header[28:30], "little")
    if start + member.file_size > len(content):
        raise CheckpointError(f"is a damaged zip file: {name!r} reaches beyond its end")
    return start, member.file_size


def _read_legacy(file: Path, content: _Bytes) -> tuple[Any, dict[str, tuple[int, int]]]:
    """Return the pickle's value and where the storages lie: after five pickles, each behind its number of values."""
    magic, end = _unpickle(content, 0) if bytes(content[:1]) == b"\x80" else (None, 0)
    if magic != _LEGACY_MAGIC:
        raise CheckpointError("is not a file that torch.save wrote")
    protocol, end = _unpickle(content, end)
    if protocol != _LEGACY_PROTOCOL:
        raise CheckpointError("has another protocol than the one of torch before 1.6")
    _, end = _unpickle(
        content, end
    )  # sizes of the writer's integers; the values are little-endian on any machine
    value, end = _unpickle(content, end)
    keys, end = _unpickle(content, end)
    storages = [tensor.storage for tensor in _state_dict(value).values()]
    return value, _find_storages(content, keys, storages, end)


def _find_storages(
    content: _Bytes, keys: Any, storages: Iterable[Storage], end: int
) -> dict[str, tuple[int, int]]:
    by_key = {storage.key: storage for storage in storages}
    if not isinstance(keys, list) or any(not isinstance(key, str) or key not in by_key for key in keys):
        raise CheckpointError("lists values that belong to no tensor")
    found: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage, start = by_key[key], end + 8
        numel = int.from_bytes(bytes(content[end:start]), "little", signed=True)
        end = start + storage.nbytes
        if numel != storage.numel or end > len(content):
            raise CheckpointError(
                f"has {numel} values where a tensor has {storage.numel}: it is cut off or damaged"
            )
        found[key] = (start, storage.nbytes)
    return found


def _unpickle(content: _Bytes, start: int, length: int = MAX_PICKLE_BYTES) -> tuple[Any, int]:
    """Return the value of the pickle at `start`, and the byte after its end."""
    if length > MAX_PICKLE_BYTES:
        raise CheckpointError(f"has a pickle of {length:,} bytes; at most {MAX_PICKLE_BYTES:,} are read")
    stream = io.BytesIO(bytes(content[start : start + length]))
    return restricted_pickle.load(stream), start + stream.tell()
