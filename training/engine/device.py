"""Tensors on their way to a device and back: batches, and the numbers of a step, copied while it computes the next one."""

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

PINNED_FOR = {"cuda"}
"""Kinds of device that fetch pinned memory by themselves, so that the host need not wait."""


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device."""
    pinned = device.type in PINNED_FOR
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Tell whether a run computes in bf16: where its `precision` says so, or is "auto" and the GPU can."""
    return precision == "bf16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )


class Moment:
    """A moment in the work of a device: after everything that it was given so far."""

    def __init__(self, device: torch.device) -> None:
        """Mark this moment; a CPU has done by now what it was given."""
        self._host_s, self._event = time.perf_counter(), None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def host_seconds(self) -> float:
        """Seconds since this moment by the host's clock."""
        return time.perf_counter() - self._host_s

    def wait(self) -> None:
        """Wait until the device has come to this moment."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_since(self, earlier: "Moment") -> float:
        """Return the seconds from an earlier moment of the same device; wait for this one."""
        self.wait()
        if self._event is None or earlier._event is None:
            return self._host_s - earlier._host_s
        seconds: float = earlier._event.elapsed_time(self._event) / 1000.0
        return seconds


class StepNumbers(Mapping[str, float]):
    """A step's numbers by name. Those of the device are copied as soon as it has them; reading one waits for the copy."""

    began: Moment | None = None
    """Start of the step, for `tokens_per_second`."""
    seconds = done = 0.0
    """Seconds of training until after the step, and the share of the run that is over then."""
    position: Mapping[str, Any] = MappingProxyType({})
    """Place in the data after the step."""

    def __init__(
        self,
        known: dict[str, float],
        tokens: float,
        measured: Tensor,
        named: Callable[[list[float]], dict[str, float]],
    ) -> None:
        """Take numbers that the host knows, those `measured` on the device (K,), and what names these.

        `tokens` are those of the step, in all processes.
        """
        self.known, self.tokens, self._named, self._values = known, tokens, named, dict[str, float]()
        self._measured = to_host(measured)
        self.ended = Moment(measured.device)

    def __getitem__(self, name: str) -> float:
        return self.known[name] if name in self.known else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, float]:
        if not self._values:
            self.ended.wait()
            self._values = {**self.known, **self._named(self._measured.tolist())}
            if self.began is not None:
                self._values["tokens_per_second"] = self.tokens / self.ended.seconds_since(self.began)
        return self._values


def to_host(tensor: Tensor) -> Tensor:
    """Return a copy that is there once the device has come so far; torch pins the memory for it."""
    return tensor.to("cpu", non_blocking=True)
