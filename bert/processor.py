"""The processor's instructions: which kernels ONNX Runtime takes, so what speed and which last bits to expect."""

import functools
import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
NAMES = {
    "amx_int8": "amx_int8",
    "avx512_vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni",
    "avx512bw": "avx512",
    "avx2": "avx2",
    "i8mm": "i8mm",
    "asimddp": "dotprod",
    "asimd": "neon",
}
"""Flag in Linux' /proc/cpuinfo → the name that is shown, the fastest for 8-bit products first."""


@functools.cache
def instructions() -> str:
    """Return the names of NAMES that this processor has, separated by spaces.

    Where the system does not tell (no Linux), the architecture's name, such as "arm64".
    """
    return instructions_in(_cpuinfo()) or platform.machine() or "unknown"


def instructions_in(cpuinfo: str) -> str:
    """Return the names of NAMES among the flags of a /proc/cpuinfo, empty if there are none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(value.split())
            return " ".join(name for flag, name in NAMES.items() if flag in flags)
    return ""


@functools.cache
def processor_name() -> str:
    """Return the processor's name as the system gives it, or its architecture."""
    lines = _cpuinfo().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return names[0] if names else platform.processor() or platform.machine()


def allowed_threads() -> int:
    """Return how many threads are of use: OMP_NUM_THREADS, which numpy's products obey too, or the cores of this process."""
    if (stated := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(stated):
        return int(stated)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> str:
    try:
        return CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
