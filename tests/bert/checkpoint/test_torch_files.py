"""Files of torch.save: the same tensors as torch reads, and no code run, whatever a file asks for."""

import json
import math
import os
import pickle
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from bert.checkpoint.restricted_pickle import MAX_OPERATIONS, load
from bert.checkpoint.torch_files import read_torch_file
from bert.checkpoint.weights import file_hashes, read_checkpoint, read_weights
from bert.errors import CheckpointError
from tests.support.hub_checkpoints import assert_same, model, save

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


@FORMATS
def test_a_whole_module_is_refused(zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"asks for 'torch\.nn\.modules\.linear\.Linear'"):
        read_torch_file(write(tmp_path / "w.bin", torch.nn.Linear(2, 2), zipped))


class Reduced:
    """An object that pickle rebuilds by a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@FORMATS
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, r"posix\.system"),
        (eval, r"__builtin__\.eval"),
        (exec, r"__builtin__\.exec"),
        (getattr, r"__builtin__\.getattr"),
        (torch.load, r"torch\.serialization\.load"),
        (torch.hub.load, r"torch\.hub\.load"),
        (np.load, r"numpy\.load"),
        (Path, r"pathlib\.Path"),
    ],
)
def test_no_call_is_made_and_its_name_is_told(
    function: Callable[..., Any], name: str, wrapped: bool, zipped: bool, tmp_path: Path
) -> None:
    planted = Reduced(function, f"open({str(tmp_path / 'trace')!r}, 'w')")
    value = {"w": torch.ones(2), "x": planted} if wrapped else planted
    file = write(tmp_path / "w.bin", value, zipped)
    with pytest.raises(CheckpointError, match=f"asks for '{name}'"):
        read_torch_file(file)
    assert not (tmp_path / "trace").exists()


def test_a_bare_pickle_is_never_run(tmp_path: Path) -> None:
    file = tmp_path / "w.bin"
    for protocol in range(2, 6):
        file.write_bytes(pickle.dumps(Reduced(os.system, f"touch {tmp_path}/trace"), protocol))
        with pytest.raises(CheckpointError, match=r"asks for 'posix\.system'"):
            read_torch_file(file)
    assert not (tmp_path / "trace").exists()
    pickle.loads(file.read_bytes())
    assert (tmp_path / "trace").exists()  # so it would have shown


@pytest.mark.parametrize(
    "pickled",
    [
        b"(cos\nsystem\nX\x01\x00\x00\x00xo.",
        b"(X\x01\x00\x00\x00xios\nsystem\n.",
        HEAD + b"cos\nsystem\n.",
        HEAD + b"ctorch\nFloat\\x53torage\n.",
        HEAD + b"ctorch\n\\o\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x10_utils.os.system\x93.",
        HEAD + b"ctorch._utils\n_rebuild_tensor\n.",
        HEAD + b"ctorch.FloatStorage\n__init__\n.",
        HEAD + b"ctorch\nFloatStorage\n)R.",
        HEAD + b"ctorch\nFloatStorage\n)\x81.",
        HEAD + b"\x82\x01.",
        HEAD + b"}}b0.",
        HEAD + b"X\x01\x00\x00\x00x)R.",
        HEAD + b"Px\n.",
    ],
)
def test_other_operations_are_refused(pickled: bytes, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"asks for|uses the pickle operation|calls|where a tensor needs"
    ):
        read_torch_file(write_zip(tmp_path / "w.bin", pickled))


def test_the_pickles_made_here_by_hand_are_sound(tmp_path: Path) -> None:
    values = np.arange(4, dtype="<f4")
    file = write_zip(tmp_path / "w.bin", state_dict(tensor((2, 2), (1, 2))), values.tobytes())
    assert np.array_equal(read_torch_file(file)["w"], values.reshape(2, 2).T)


HUGE = (1 << 62) + 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (tensor((5,)), r"shape \(5,\) over a storage of 4 values"),
        (tensor((2,), (4,)), "reads value 4 of a storage of 4"),
        (tensor((4,), (1,), 1), "reads value 4 of a storage of 4"),
        (tensor((2,), (HUGE,)), f"reads value {HUGE} of a storage of 4"),
        (tensor((1,), (1,), HUGE), f"reads value {HUGE} of a storage of 4"),
        (tensor((4,), (-1,), 3), "are no counts"),
        (tensor((4,), (1,), -1), "are no counts"),
        (tensor((-1,)), "are no counts"),
        (tensor((1 << 63,)), "are no counts"),
        (tensor((HUGE, 4, 4)), "3 sizes and 1 strides"),
        (tensor((HUGE, 4), (0, 0)), "over a storage of 4 values"),
        (tensor((0, HUGE), (0, 0)), "over a storage of 4 values"),
        (tensor((1,) * 99, (1,) * 99), "99 sizes and 99 strides"),
        (tensor((HUGE,), of=storage(HUGE)), "has no .* bytes for 'w': it is cut off"),
        (tensor((0,), of=storage(HUGE)), "has no .* bytes for 'w': it is cut off"),
        (tensor((5,), of=storage(5)), "has no 20 bytes for 'w'"),
        (tensor((4,), of=storage(4, "DoubleStorage")), "has no 32 bytes for 'w'"),
        (tensor(of=storage(4, key="1")), "has no 16 bytes for 'w'"),
        (tensor(of=storage(-4)), "a storage that is none"),
        (tensor(of=storage(4, "QInt8Storage")), r"asks for 'torch\.QInt8Storage'"),
        (tensor(rest=b"\x89N}" + text("conj") + b"\x88s"), "a conjugate or a negative"),
        (tensor(of=text("w")), "has a str where a tensor needs a Storage"),
        (b"ctorch._utils\n_rebuild_parameter\n(Nt" + b"R", "has a NoneType where a tensor needs"),
        (b"(" + text("module") + b"NNNNtQ", "something other than the values of a tensor"),
        (b"(" * 9 + b"t" * 9, "holds a tuple under 'w'"),
    ],
)
def test_forged_tensors_are_refused(value: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_torch_file(write_zip(tmp_path / "w.bin", state_dict(value)))


def test_many_views_of_one_storage_take_no_more_memory_than_the_file(tmp_path: Path) -> None:
    views = b"".join(text(f"w{i}") + tensor((99, i + 1), (1, 1), of=storage(10_000)) for i in range(99))
    file = write_zip(tmp_path / "w.bin", HEAD + b"}(" + views + b"u.", b"\0" * 40_000)
    with pytest.raises(CheckpointError, match="more values than the file has bytes"):
        read_torch_file(file)


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"]" * (MAX_OPERATIONS + 1),
        b"(" * (MAX_OPERATIONS + 1),
        b"]" * 200_000 + b"a" * 199_999 + b".",
        b")" + b"\x85" * 400_000 + b".",
        b"}" + b")" + b"\x85" * 400_000 + b"Ns.",
        b"](" + b"N" * 400_000 + b"t" + b"q\x00" + (b"h\x00" + b"Q") * 200_000 + b".",
        b"("
        + b"N" * 400_000
        + b"tq\x00ctorch._utils\n_rebuild_tensor_v2\nq\x01"
        + b"h\x01h\x00R" * 100
        + b".",
        b"Nr\xff\xff\xff\x7f.",
        b"N\x94j\xff\xff\xff\x7f.",
        b"]q\x00h\x00a.",
        b"}q\x00X\x01\x00\x00\x00xh\x00s.",
        b"X\xff\xff\xff\xffx.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        b"\x8b\xff\xff\xff\x7f1.",
        b"\x8b\x00\x00\x00\x80.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xffN.",
        b"I" + b"9" * 5_000 + b"\n.",
        b"S'\\z'\n.",
        b"t.",
        b"R.",
        b"a.",
        b"u.",
        b"s.",
        b"h\x05.",
        b"(0t.",
        b"N\x85\x86.",
        b".",
        b"\x8a\xff" + b"\x7f" * 255 + b".",
        b"ccollections\nOrderedDict\n]]NaaR.",
        b"ccollections\nOrderedDict\n]]\x85Na\x85R.",
    ],
)
def test_hostile_pickles_are_refused_at_once(pickled: bytes, tmp_path: Path) -> None:
    start = time.perf_counter()
    for value in (HEAD + pickled, state_dict(pickled.removesuffix(b"."))):
        with pytest.raises(CheckpointError):
            read_torch_file(write_zip(tmp_path / "w.bin", value))
    assert time.perf_counter() - start < 30


def test_a_long_list_of_pairs_is_read_once() -> None:
    # Else this short pickle would have 20,000 pairs copied 60,000 times.
    listed = b"](" + b"](X\x01\x00\x00\x00xNe" * 20_000 + b"e\x85q\x00"
    pickled = HEAD + listed + b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00R" * 60_000 + b"."
    start = time.perf_counter()
    assert load(BytesIO(pickled)) == {}
    assert time.perf_counter() - start < 30


def test_an_ordered_dict_as_python_2_wrote_it_is_read(tmp_path: Path) -> None:
    pair = b"](U\x01w" + tensor() + b"e"
    pickled = HEAD + b"ccollections\nOrderedDict\n](" + pair + b"e\x85R."
    file = write_zip(tmp_path / "w.bin", pickled, np.arange(4, dtype="<f4").tobytes())
    assert read_torch_file(file)["w"].tolist() == [0, 1, 2, 3]


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
            CheckpointError, match=r"w\.bin (is no file that torch\.save wrote|is a damaged zip)"
        ):
            read_torch_file(file)
