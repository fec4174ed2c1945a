"""Files of a checkpoint that were made to hang or crash the export: each ends in one line that names the file."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert.errors import CheckpointError
from tests.support.process import ROOT
from tests.support.published import read, write_embedder
from tests.support.tokenizers import with_compiled_normalizer

NAMES = (
    "config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "model.safetensors",
    "vocab.txt",
)
"""One of each kind: needed or not, in a module's folder, weights, another tokenizer."""


def export(folder: Path) -> subprocess.CompletedProcess[str]:
    """Export in a process of its own; raises where it hangs."""
    command = [sys.executable, "-m", "model_export.command", "--checkpoint", str(folder), "--out"]
    return subprocess.run(
        [*command, str(folder.parent / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )


def pipe(file: Path) -> None:
    os.mkfifo(file)


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def loop(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize("make", [pipe, device, loop, Path.mkdir])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_a_regular_file_is_named(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(
        CheckpointError, match=rf"{name} is (not a regular file|a link to nothing), and only regular files"
    ):
        read(tmp_path)


def test_an_export_of_a_pipe_ends_with_one_line(tmp_path: Path) -> None:
    write_embedder(tmp_path / "model")
    (tmp_path / "model/config.json").unlink()
    pipe(tmp_path / "model/config.json")
    found = export(tmp_path / "model")
    assert found.returncode == 1 and "Traceback" not in found.stderr
    assert re.search(r"^bert-export: .*/config\.json is not a regular file.*\n\Z", found.stderr, re.MULTILINE)


def test_an_export_of_a_damaged_normalisation_ends_with_one_line(tmp_path: Path) -> None:
    write_embedder(tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_bytes(with_compiled_normalizer(struct.pack("<II", 4, 1 << 20)))
    found = export(tmp_path / "model")
    assert found.returncode == 1 and "Traceback" not in found.stderr and "panicked" not in found.stderr
    assert re.search(
        r"^bert-export: .*/tokenizer\.json cannot be read as a tok.*\n\Z", found.stderr, re.MULTILINE
    )


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [1 << 62, 0], "data_offsets": [0, 0]},
        {"shape": [1] * 100, "data_offsets": [0, 4]},
        {"shape": [-1], "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 1 << 62]},
        {"shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]},
    ],
    ids=lambda tensor: str(tensor)[:40],
)
def test_shapes_and_places_that_cannot_be_are_refused(tensor: dict[str, list[int]], tmp_path: Path) -> None:
    write_embedder(tmp_path)
    header = json.dumps({"a": {"dtype": "F32", **tensor}}).encode()
    data = bytes(min(tensor["data_offsets"][1], 4))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read as safetensors"):
        read(tmp_path)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 1 << 27])
def test_a_header_longer_than_the_file_is_refused(length: int, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read as safetensors"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt", "added_tokens.json"])
def test_a_file_of_a_terabyte_is_refused_at_once(name: str, tmp_path: Path) -> None:
    write_embedder(tmp_path)
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: it has 1,099,511,627,776 bytes"):
        read(tmp_path)
