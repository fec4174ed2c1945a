"""Pickles that hold tensors, read without running anything they name.

A pickle is a program, and `pickle.Unpickler` imports and calls what it asks for. This reader imports nothing. It knows
the few operations that torch writes for a dict of tensors, and a tensor becomes a description of where its values lie.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeGuard

import numpy as np

from bert.errors import CheckpointError

MAX_PICKLE_BYTES = 16 << 20
"""Maximum length of one pickle; that of BERT large has 0.1 MB."""
MAX_OPERATIONS = 500_000
"""Maximum operations in one pickle; that of BERT large has some 15,000."""
MAX_DIMENSIONS = 32
_MAX_EMPTY = 1 << 40
"""Maximum product of the other sizes of a tensor without values, which numpy must be able to count."""

BFLOAT16 = "bfloat16"
# bfloat16, which numpy does not have, is read as whole numbers of two bytes.
_STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": BFLOAT16,
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}
_CALLS = {
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """Values of one type that lie side by side in the file, under a key."""

    dtype: str
    """numpy's name of the type, or BFLOAT16."""
    key: str
    numel: int

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Type of the bytes in the file, which are little-endian."""
        return np.dtype("uint16" if self.dtype == BFLOAT16 else self.dtype).newbyteorder("<")

    @property
    def nbytes(self) -> int:
        """Length in the file, in bytes."""
        return self.numel * self.stored_dtype.itemsize


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of a storage; it never reaches beyond it. Offset and strides count values, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of values."""
        return _product(self.shape)


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


def load(stream: BytesIO) -> Any:
    """Read one pickle: plain values, lists, dicts, and a StoredTensor for each tensor.

    Raises CheckpointError for anything else that the pickle asks for, and for one that is damaged. The message is the end
    of a sentence that begins with the file's name.
    """
    try:
        return _Machine(stream).run()
    except CheckpointError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        # Operands that are cut off, a value that was never put there, a key that nothing can be found by.
        raise CheckpointError(f"is a damaged pickle ({type(error).__name__})") from None


class _Machine:
    """The stack machine of a pickle, without the operations that could reach anything outside it."""

    def __init__(self, stream: BytesIO) -> None:
        self._stream = stream
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_OPERATIONS):
            code = self._stream.read(1).decode("latin-1")
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise CheckpointError("is a damaged pickle: it is cut off, or no pickle at all")
            if operation.name == "STOP":
                return self._stack.pop()
            handler = _HANDLERS.get(operation.name)
            if handler is None:
                raise CheckpointError(f"uses the pickle operation {operation.name}, which no tensor needs")
            reads_itself = operation.name == "GLOBAL"  # pickletools would resolve escapes in its names
            argument = None if reads_itself or not operation.arg else operation.arg.reader(self._stream)
            handler(self, argument)
        raise CheckpointError(f"has a pickle of more than {MAX_OPERATIONS:,} operations")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        if start > len(self._stack):
            raise ValueError("a mark above the stack")
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def pop_tuple(self, length: int) -> None:
        start = len(self._stack) - length
        if start < 0:
            raise ValueError("too few values")
        self._stack[start:] = [tuple(self._stack[start:])]

    def memoise(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def append(self, values: list[Any]) -> None:
        _expect(self._stack[-1], list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        _fill(_expect(self._stack[-1], dict), values)

    def stack_global(self, _: Any) -> None:
        name, module = _expect(self._stack.pop(), str), _expect(self._stack.pop(), str)
        self.find_global(module, name)

    def read_global(self, _: Any) -> None:
        module, name = self._stream.readline(), self._stream.readline()
        if not name.endswith(b"\n"):
            raise ValueError("a name that is cut off")
        self.find_global(module[:-1].decode(), name[:-1].decode())

    def find_global(self, module: str, name: str) -> None:
        dotted = f"{module}.{name}"
        if dotted not in _CALLS and dotted not in _STORAGES:
            raise CheckpointError(
                f"asks for {dotted[:80]!r}; nothing but tensors is taken from a pickle: save the model's state_dict() alone"
            )
        self.push(_Global(dotted))

    def call(self, _: Any) -> None:
        arguments, function = _expect(self._stack.pop(), tuple), _expect(self._stack.pop(), _Global)
        if function.name not in _CALLS:
            raise CheckpointError(f"calls {function.name!r}, which no tensor needs")
        self.push(_call(function.name, arguments))

    def build(self, _: Any) -> None:
        # An OrderedDict's attributes: a state_dict keeps the versions of its modules there.
        self._stack.pop()
        _expect(self._stack[-1], dict)

    def find_storage(self, _: Any) -> None:
        # ("storage", type, key, device, numel); the legacy format adds a view, which torch has not used since 0.4.
        parts = _expect(self._stack.pop(), tuple)
        if len(parts) not in (5, 6) or parts[0] != "storage" or parts[5:] not in ((), (None,)):
            raise CheckpointError("refers to something other than the values of a tensor")
        _, storage, key, _device, numel = parts[:5]
        dtype = _STORAGES.get(_expect(storage, _Global).name)
        if dtype is None or not isinstance(key, str) or not _is_count(numel):
            raise CheckpointError("describes a damaged storage")
        self.push(Storage(dtype, key, numel))


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "torch._utils._rebuild_tensor_v2":
        return _tensor(*arguments[:8])
    if name == "torch._utils._rebuild_parameter":
        return _expect(arguments[0], StoredTensor)
    if name == "torch.Size":
        return _expect(arguments[0], tuple)
    found: dict[Any, Any] = {}
    pairs = _expect(arguments[0], list) if arguments else []  # as Python 2 wrote it
    for pair in pairs:
        if len(_expect(pair, list)) != 2:
            raise ValueError("no pair")
        _fill(found, pair)
    pairs.clear()  # else a short pickle could have a long list copied again and again
    return found


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    _requires_grad: Any = None,
    _hooks: Any = None,
    metadata: Any = None,
) -> StoredTensor:
    """Describe a tensor; raises CheckpointError where it would read beyond its storage or grow in memory."""
    _expect(storage, Storage)
    if len(_expect(shape, tuple)) != len(_expect(strides, tuple)) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"has a tensor of {len(shape)} sizes and {len(strides)} strides")
    if not all(_is_count(number) for number in (offset, *shape, *strides)):
        raise CheckpointError("has a tensor whose offset, sizes or strides are not counts")
    if metadata:
        raise CheckpointError("has a tensor that is a conjugate or a negative of its stored values")
    if _product(max(size, 1) for size in shape) > (_MAX_EMPTY if 0 in shape else storage.numel):
        raise CheckpointError(f"has a tensor of shape {shape} over a storage of {storage.numel} values")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.numel:
        raise CheckpointError(
            f"has a tensor that reads value {last} of a storage of {storage.numel}: shape {shape}, strides {strides}"
        )
    return StoredTensor(storage, offset, shape, strides)


def _fill(target: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Hashing a deeply nested tuple would overflow the stack.
        if not isinstance(key, str | int):
            raise CheckpointError(f"has a dict with a key of type {type(key).__name__}")
        target[key] = value


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise CheckpointError(f"has a {type(value).__name__} where a tensor needs a {kind.__name__}")
    return value


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 63


def _product(numbers: Any) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


_OPERATIONS = {operation.code: operation for operation in pickletools.opcodes}
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, version: None,
    "FRAME": lambda machine, length: None,
    "MARK": _Machine.mark,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"), _Machine.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _Machine.push),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.pop_tuple(1),
    "TUPLE2": lambda machine, _: machine.pop_tuple(2),
    "TUPLE3": lambda machine, _: machine.pop_tuple(3),
    "APPEND": lambda machine, _: machine.append([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine._stack.pop(-2), machine._stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "BINPUT": _Machine.memoise,
    "LONG_BINPUT": _Machine.memoise,
    "MEMOIZE": _Machine.memoise,
    "BINGET": lambda machine, index: machine.push(machine._memo[index]),
    "LONG_BINGET": lambda machine, index: machine.push(machine._memo[index]),
    "GLOBAL": _Machine.read_global,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.find_storage,
}
