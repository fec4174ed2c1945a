"""Files of torch.save: the same tensors as torch reads."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bert.checkpoint.torch_files import read_torch_file
from bert.checkpoint.weights import file_hashes, read_checkpoint, read_weights
from bert.errors import CheckpointError
from tests.support.hub_checkpoints import assert_same, model, save
from tests.support.torch_files import (
    FORMATS,
    HEAD,
    state_dict,
    tensor,
    write,
    write_zip,
)


def assert_reads_as_torch(file: Path) -> None:
    found = read_torch_file(file)
    expected = torch.load(file, weights_only=True)
    floats = {name: value for name, value in expected.items() if value.is_floating_point()}
    assert list(found) == list(floats)
    for name, value in floats.items():
        assert (
            found[name].dtype == np.float32 and found[name].flags.c_contiguous and found[name].flags.writeable
        )
        assert found[name].shape == tuple(value.shape)
        assert np.array_equal(found[name], value.detach().float().numpy(), equal_nan=True), name


@FORMATS
def test_every_type_is_read_as_torch_reads_it(zipped: bool, tmp_path: Path) -> None:
    floats = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    whole = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    values = {str(dtype): (torch.randn(3, 5) * 3).to(dtype) for dtype in floats + whole}
    values["extremes"] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0]).bfloat16()
    assert_reads_as_torch(write(tmp_path / "w.bin", values, zipped))


@FORMATS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(protocol: int, zipped: bool, tmp_path: Path) -> None:
    # torch's own reader of weights alone knows protocol 2 only.
    weights = model().state_dict()
    assert_same(
        read_torch_file(write(tmp_path / "w.bin", weights, zipped, pickle_protocol=protocol)), weights
    )


@FORMATS
def test_views_are_read_as_torch_reads_them(zipped: bool, tmp_path: Path) -> None:
    base = torch.randn(6, 8)
    views = {
        "transposed": base.T,
        "column": base[:, 3],
        "last": base[5, 7],
        "block": base[1:5:2, 2:7:3],
        "permuted": base.view(2, 3, 8).permute(2, 0, 1),
        "bfloat16": torch.randn(4, 6).bfloat16().T[1:],
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0),
        "expanded": torch.randn(1, 3).expand(1, 3),
    }
    assert_reads_as_torch(write(tmp_path / "w.bin", views, zipped))


@FORMATS
def test_parameters_and_a_bare_dict_are_read(zipped: bool, tmp_path: Path) -> None:
    values = {"w": torch.nn.Parameter(torch.randn(2, 3)), "b": torch.nn.Parameter(torch.randn(3), False)}
    assert_reads_as_torch(write(tmp_path / "dict.bin", values, zipped))
    assert_reads_as_torch(write(tmp_path / "ordered.bin", OrderedDict(values), zipped))


@FORMATS
def test_tied_tensors_are_read_once(zipped: bool, tmp_path: Path) -> None:
    table = torch.randn(7, 4)
    file = write(tmp_path / "w.bin", {"embedding": table, "decoder": table, "row": table[2]}, zipped)
    assert_reads_as_torch(file)
    found = read_torch_file(file)
    assert found["embedding"] is found["decoder"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), zipped=st.booleans())
def test_any_view_is_read_as_torch_reads_it(data: st.DataObject, zipped: bool, tmp_path: Path) -> None:
    base = torch.arange(60.0)
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    assume(math.prod(shape) <= 60)  # more values than the storage has are refused
    strides = tuple(data.draw(st.integers(0, 6)) for _ in shape)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)
    offset = data.draw(st.integers(0, max(0, 59 - last)))
    values = {"view": base.as_strided(shape, strides, offset)}
    assert_reads_as_torch(write(tmp_path / "w.bin", values, zipped))


@FORMATS
def test_a_checkpoint_of_the_hub_in_pickled_weights_is_read(zipped: bool, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model().state_dict().items()
    }
    write(tmp_path / "pytorch_model.bin", old, zipped)
    checkpoint = read_checkpoint(tmp_path)
    assert_same(checkpoint.weights, model().state_dict())
    assert "pytorch_model.bin" in checkpoint.sources["files"]


@FORMATS
def test_shards_are_read_together(zipped: bool, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weights = list(model().state_dict().items())
    parts = [dict(weights[:9]), dict(weights[9:])]
    places: dict[str, str] = {}
    for i, part in enumerate(parts, 1):
        name = f"pytorch_model-0000{i}-of-00002.bin"
        write(tmp_path / name, part, zipped)
        places |= dict.fromkeys(part, name)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(read_checkpoint(tmp_path).weights, model().state_dict())
    assert "pytorch_model-00002-of-00002.bin" in file_hashes(tmp_path)
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.bin is missing"):
        read_weights(tmp_path)


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert_same(read_weights(tmp_path), model().state_dict())


@FORMATS
@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_training_checkpoint_is_refused_with_advice(key: str, zipped: bool, tmp_path: Path) -> None:
    file = write(tmp_path / "w.bin", {key: {"w": torch.ones(2)}, "epoch": 3}, zipped)
    with pytest.raises(
        CheckpointError, match=rf"holds a dict under '{key}'.*save the model's state_dict\(\)"
    ):
        read_torch_file(file)


@FORMATS
@pytest.mark.parametrize("value", [[torch.ones(2)], torch.ones(2), 5, None, {5: torch.ones(2)}])
def test_what_is_no_dict_of_tensors_is_refused(value: Any, zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"w\.bin holds a "):
        read_torch_file(write(tmp_path / "w.bin", value, zipped))


def test_the_pickles_made_here_by_hand_are_sound(tmp_path: Path) -> None:
    values = np.arange(4, dtype="<f4")
    file = write_zip(tmp_path / "w.bin", state_dict(tensor((2, 2), (1, 2))), values.tobytes())
    assert np.array_equal(read_torch_file(file)["w"], values.reshape(2, 2).T)


def test_an_ordered_dict_as_python_2_wrote_it_is_read(tmp_path: Path) -> None:
    pair = b"](U\x01w" + tensor() + b"e"
    pickled = HEAD + b"ccollections\nOrderedDict\n](" + pair + b"e\x85R."
    file = write_zip(tmp_path / "w.bin", pickled, np.arange(4, dtype="<f4").tobytes())
    assert read_torch_file(file)["w"].tolist() == [0, 1, 2, 3]
