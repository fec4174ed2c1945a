"""Files of torch.save that are cut off, spoiled or none: read or refused, never more."""

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bert.checkpoint.restricted_pickle import load
from bert.checkpoint.torch_files import read_torch_file
from bert.errors import CheckpointError
from tests.support.torch_files import FORMATS, state_dict, tensor, write, write_zip


@FORMATS
def test_a_file_that_is_cut_off_anywhere_is_refused(zipped: bool, tmp_path: Path) -> None:
    whole = write(
        tmp_path / "w.bin", {"w": torch.randn(3, 4).T, "b": torch.ones(3).half()}, zipped
    ).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.bin").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_torch_file(tmp_path / "cut.bin")


def spoiled(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    found = bytearray(content)
    for place, value in changes:
        found[place % len(found)] = value
    return bytes(found)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)


@FORMATS
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
@example(changes=[])
def test_a_spoiled_file_is_read_or_refused(
    changes: list[tuple[int, int]], zipped: bool, tmp_path: Path
) -> None:
    values = {"w": torch.ones(3, 4).T, "tied": torch.ones(2), "n": torch.arange(3)}
    file = write(tmp_path / "w.bin", values, zipped)
    file.write_bytes(spoiled(file.read_bytes(), changes))
    try:
        found = read_torch_file(file)
    except CheckpointError:
        return
    assert all(value.dtype == np.float32 and value.size < 100 for value in found.values())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), CHANGES)
def test_any_pickle_gives_plain_values_or_is_refused(noise: bytes, changes: list[tuple[int, int]]) -> None:
    for content in (noise, spoiled(state_dict(tensor()), changes), state_dict(tensor())[:-1] + noise):
        try:
            load(BytesIO(content))
        except CheckpointError as error:
            assert len(str(error)) < 2_000


def test_what_torch_never_writes_into_a_zip_file_is_refused(tmp_path: Path) -> None:
    file, good = tmp_path / "w.bin", state_dict(tensor())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", good)
    with pytest.raises(CheckpointError, match="compressed or encrypted"):
        read_torch_file(file)
    with pytest.raises(CheckpointError, match="big-endian machine"):
        read_torch_file(write_zip(file, good, byteorder=b"big"))
    assert read_torch_file(write_zip(file, good, byteorder=b"little"))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/model.json", "{}")
    with pytest.raises(CheckpointError, match=r"with 0 data\.pkl"):
        read_torch_file(file)
    with pytest.raises(CheckpointError, match=r"has a pickle of .* bytes"):
        read_torch_file(write_zip(file, good + b"\0" * (16 << 20)))
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(80):
            archive.writestr(f"archive/data/{'x' * 60_000}{i}", b"")
    with pytest.raises(CheckpointError, match="whose list of members takes"):
        read_torch_file(file)


def test_a_file_that_is_none_of_torchs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.bin"
    for content in (b"", b"version https://git-lfs.github.com/spec/v1\n", b"\0" * 99, b"PK\x03\x04" * 9):
        file.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"w\.bin (is not a file that torch\.save wrote|is a damaged zip)"
        ):
            read_torch_file(file)
