"""Input of a section of the check."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu_check.records import Recorder

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """Device, size and place of one section's run."""

    device: str
    """"cuda" or "cpu"."""
    small: bool
    """True for tiny shapes, which try the code and measure nothing."""
    folder: Path
    """Folder for what the section writes beside its findings."""
    record: Recorder
    ends_at: float
    """Moment by `time.monotonic` at which the section is stopped."""

    @property
    def on_gpu(self) -> bool:
        """True on a GPU."""
        return self.device == "cuda"

    @property
    def has_engine(self) -> bool:
        """False where the device is a GPU and this onnxruntime has no CUDA."""
        import onnxruntime  # late: not every section needs it

        return not self.on_gpu or "CUDAExecutionProvider" in onnxruntime.get_available_providers()

    @property
    def left_s(self) -> float:
        """Seconds until the section is stopped."""
        return self.ends_at - time.monotonic()

    def pick(self, full: T, small: T) -> T:
        """Return the value for the size of this run."""
        return small if self.small else full
