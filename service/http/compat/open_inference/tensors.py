"""Tensors of the Open Inference Protocol: texts that come in, and what goes out, in JSON or in binary."""

import math
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import Field

from bert.errors import displayed, shown
from service.http.compat.requests import CompatibleRequest, refused
from service.tasks.schema import Example, whole

HEADER = "inference-header-content-length"
"""Header with the bytes of JSON before binary tensors."""
Size = Annotated[int, Field(ge=0), whole(0)]


class Tensor(CompatibleRequest):
    """A named array of texts."""

    name: str
    datatype: str
    shape: list[Size] = Field(max_length=2)
    parameters: dict[str, Any] = Field({})
    data: Any = None


class Wanted(CompatibleRequest):
    """An output that is asked for."""

    name: str
    parameters: dict[str, Any] = Field({})

    def check(self) -> None:
        """Refuse forms of an output that Triton has and this service has not."""
        for name in ("classification", "shared_memory_region"):
            if self.parameters.get(name) is not None:
                raise refused(f"{displayed(self.name)}.{name}", "cannot be honoured: leave it out")
        _check_flag(self.parameters, "binary_data", f"{displayed(self.name)}.")


class InferRequest(CompatibleRequest):
    """Texts as tensors."""

    example: ClassVar[Example] = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A warm film."]}]
    }
    inputs: list[Tensor] = Field(max_length=8)
    outputs: list[Wanted] | None = Field(None, max_length=8)
    id: str | None = None
    parameters: dict[str, Any] = Field({}, description="top_k, truncate, binary_data_output.")

    def check(self) -> None:
        """Refuse two inputs of one name, and what cannot be honoured of the outputs."""
        names = [tensor.name for tensor in self.inputs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise refused("inputs", f"has {displayed(twice)!r} more than once: send its texts in one tensor")
        _check_flag(self.parameters, "binary_data_output")
        for output in self.outputs or []:
            output.check()


def fill(tensor: Tensor, left: memoryview, max_texts: int) -> memoryview:
    """Replace a tensor's data by its list of texts, from JSON or from the binary part; return what is left of that."""
    where = displayed(tensor.name)
    count = math.prod(tensor.shape)
    if (
        tensor.datatype != "BYTES"
        or not tensor.shape
        or min(tensor.shape) < 0
        or tensor.shape[1:] not in ([], [1])
    ):
        raise refused(where, "must be texts: datatype BYTES, shape [n] or [n, 1]")
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        data = tensor.data if isinstance(tensor.data, list) else []
        texts = list(chain.from_iterable(each if isinstance(each, list) else [each] for each in data))
    else:
        if not isinstance(size, int) or not 0 <= size <= len(left):
            raise refused(where, f"has binary_data_size {size!r}, and {len(left)} bytes of the body are left")
        texts = _strings(where, left[:size], max_texts)
        left = left[size:]
    if not all(isinstance(text, str) for text in texts):
        raise refused(where, "must hold strings")
    if len(texts) != count:
        raise refused(where, f"has {len(texts)} texts and the shape {tensor.shape}")
    tensor.data = texts
    return left


def _strings(where: str, data: memoryview, max_texts: int) -> list[str]:
    """Read texts that each follow their length, four bytes, little endian; at most one more than `max_texts`."""
    texts, place = list[str](), 0
    while place < len(data) and len(texts) <= max_texts:
        length = int.from_bytes(data[place : place + 4], "little")
        text = data[place + 4 : place + 4 + length]
        if len(text) < length or place + 4 > len(data):
            raise refused(where, "ends inside a text")
        try:
            texts.append(str(text, "utf-8"))
        except UnicodeDecodeError:
            raise refused(f"{where}[{len(texts)}]", "is not UTF-8") from None
        place += 4 + length
    return texts


def _check_flag(parameters: Mapping[str, Any], name: str, place: str = "") -> None:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise refused(f"{place}{name}", f"must be true or false, not {shown(value)}")
