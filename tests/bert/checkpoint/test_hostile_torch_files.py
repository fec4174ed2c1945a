"""Files of torch.save that ask for calls or forge their tensors: no code is run, and no more is read than they hold."""

import os
import pickle
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert.checkpoint.restricted_pickle import MAX_OPERATIONS, load
from bert.checkpoint.torch_files import read_torch_file
from bert.errors import CheckpointError
from tests.support.torch_files import FORMATS, HEAD, state_dict, storage, tensor, text, write, write_zip


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
        file.write_bytes(pickle.dumps(Reduced(os.system, f"touch '{tmp_path}/trace'"), protocol))
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


HUGE = (1 << 62) + 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (tensor((5,)), r"shape \(5,\) over a storage of 4 values"),
        (tensor((2,), (4,)), "reads value 4 of a storage of 4"),
        (tensor((4,), (1,), 1), "reads value 4 of a storage of 4"),
        (tensor((2,), (HUGE,)), f"reads value {HUGE} of a storage of 4"),
        (tensor((1,), (1,), HUGE), f"reads value {HUGE} of a storage of 4"),
        (tensor((4,), (-1,), 3), "are not counts"),
        (tensor((4,), (1,), -1), "are not counts"),
        (tensor((-1,)), "are not counts"),
        (tensor((1 << 63,)), "are not counts"),
        (tensor((HUGE, 4, 4)), "3 sizes and 1 strides"),
        (tensor((HUGE, 4), (0, 0)), "over a storage of 4 values"),
        (tensor((0, HUGE), (0, 0)), "over a storage of 4 values"),
        (tensor((1,) * 99, (1,) * 99), "99 sizes and 99 strides"),
        (tensor((HUGE,), of=storage(HUGE)), "has no .* bytes for 'w': it is cut off"),
        (tensor((0,), of=storage(HUGE)), "has no .* bytes for 'w': it is cut off"),
        (tensor((5,), of=storage(5)), "has no 20 bytes for 'w'"),
        (tensor((4,), of=storage(4, "DoubleStorage")), "has no 32 bytes for 'w'"),
        (tensor(of=storage(4, key="1")), "has no 16 bytes for 'w'"),
        (tensor(of=storage(-4)), "a damaged storage"),
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
    start = time.process_time()
    for value in (HEAD + pickled, state_dict(pickled.removesuffix(b"."))):
        with pytest.raises(CheckpointError):
            read_torch_file(write_zip(tmp_path / "w.bin", value))
    assert time.process_time() - start < 30


def test_a_long_list_of_pairs_is_read_once() -> None:
    # Else this short pickle would have 20,000 pairs copied 60,000 times.
    listed = b"](" + b"](X\x01\x00\x00\x00xNe" * 20_000 + b"e\x85q\x00"
    pickled = HEAD + listed + b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00R" * 60_000 + b"."
    start = time.process_time()
    assert load(BytesIO(pickled)) == {}
    assert time.process_time() - start < 30
