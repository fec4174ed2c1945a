"""Files of torch.save, written by torch or by hand."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
HEAD = b"\x80\x02"


def write(file: Path, value: Any, zipped: bool, **settings: Any) -> Path:
    torch.save(value, file, _use_new_zipfile_serialization=zipped, **settings)
    return file


def write_zip(file: Path, pickled: bytes, storage: bytes = b"\0" * 16, **members: bytes) -> Path:
    """Write the zip format by hand, with one storage under the key 0."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", storage)
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)
    return file


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    return b"\x8a" + bytes([9]) + value.to_bytes(9, "little", signed=True)


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(numel: int = 4, kind: str = "FloatStorage", key: str = "0") -> bytes:
    return (
        b"("
        + text("storage")
        + f"ctorch\n{kind}\n".encode()
        + text(key)
        + text("cpu")
        + number(numel)
        + b"tQ"
    )


def tensor(
    shape: tuple[int, ...] = (4,),
    strides: tuple[int, ...] = (1,),
    offset: int = 0,
    of: bytes | None = None,
    rest: bytes = b"\x89N",
) -> bytes:
    content = (of or storage()) + number(offset) + numbers(*shape) + numbers(*strides) + rest
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + content + b"tR"


def state_dict(value: bytes, name: str = "w") -> bytes:
    return HEAD + b"}" + text(name) + value + b"s."
