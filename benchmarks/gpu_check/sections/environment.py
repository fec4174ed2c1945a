"""Machine, versions and rates. It needs torch alone; whatever else is missing is told."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu_check.check import Check

PACKAGES = (
    "torch", "triton", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "tokenizers", "safetensors", "transformers",
    "matplotlib", "tensorboard", "pydantic", "pydantic-settings", "PyYAML", "fastapi", "fastapi-offline", "uvicorn",
    "uvloop", "sentencex", "httptools", "orjson", "prometheus-client",
)  # fmt: skip
"""Packages that a section may need; a GPU's onnxruntime is either of the two."""
QUERIES = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "clocks.sm",
    "power.limit",
)
LOADING = """
import ctypes, pathlib, sys
import onnxruntime
onnxruntime.preload_dlls()
library = pathlib.Path(sys.argv[1])
ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(library))
"""
COPY_BYTES = {"cuda": 2**32, "cpu": 2**25}


def run(check: Check) -> None:
    """Record machine, versions and rates."""
    for name, value in _facts(check):
        check.record.row("environment", name=name, value=value)
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, found in versions.items() if not found and name != "onnxruntime-gpu"]
    check.record.row(
        "environment", name="packages", value=", ".join(f"{n} {v}" for n, v in versions.items() if v)
    )
    check.record.row(
        "environment", name="not installed", value=", ".join(missing) or "nothing that a section needs"
    )
    with check.record.step("onnxruntime"):
        import onnxruntime

        check.record.row(
            "environment", name="onnxruntime", value=f"{onnxruntime.__version__}, {onnxruntime.__file__}"
        )
        providers = onnxruntime.get_available_providers()
        check.record.row("environment", name="providers", value=", ".join(providers))
        if check.on_gpu and "CUDAExecutionProvider" not in providers:
            check.record.note(
                "This onnxruntime has no CUDA: parity is that of numpy, and neither engine, captured shapes nor service "
                "can be measured on the GPU. Install onnxruntime-gpu, or bring it along (docs/gpu-check.md)."
            )
        _cuda_library(check, Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so")
    with check.record.step("rates"):
        _rates(check)


def _facts(check: Check) -> Iterator[tuple[str, str]]:
    yield "device", check.device
    yield "Python", platform.python_version()
    yield "machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform()}"
    yield "CUDA of torch", f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
    if check.on_gpu:
        gpu = torch.cuda.get_device_properties(0)
        yield (
            "GPU",
            (
                f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {gpu.multi_processor_count} multiprocessors, "
                f"compute capability {gpu.major}.{gpu.minor}"
            ),
        )
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
        yield f"nvidia-smi ({', '.join(QUERIES)})", " ".join((done.stdout or done.stderr).split())


def _cuda_library(check: Check, library: Path) -> None:
    """Record whether the library of onnxruntime's CUDA loads without torch, as the service has to load it."""
    if not library.is_file():
        return
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(library)], capture_output=True, text=True, timeout=30, check=False
    )
    said = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["nothing was said"]
    check.record.row(
        "environment", name="CUDA of onnxruntime", value="loads" if not done.returncode else said[0]
    )
    if check.on_gpu and done.returncode:
        raise RuntimeError(f"{library.name} does not load: {said[0]}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _rates(check: Check) -> None:
    from training.pretraining.mfu import matmul_peak

    device = torch.device(check.device)
    dtypes = (torch.float16, torch.bfloat16, torch.float32) if check.on_gpu else (torch.float32,)
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        check.record.row(
            "rates", of=f"square product, {name}", rate=f"{matmul_peak(device, dtype) / 1e12:.2f} TFLOP/s"
        )
    source = torch.ones(COPY_BYTES[check.device] // 4, device=device)
    target = torch.empty_like(source)
    seconds = min(_copy_s(source, target) for _ in range(5))
    check.record.row("rates", of="copy", rate=f"{2 * source.nbytes / seconds / 1e12:.3f} TB/s")


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    def wait() -> None:
        if source.is_cuda:
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    target.copy_(source)
    wait()
    return time.perf_counter() - began
