"""The process of one section: python -m benchmarks.gpu_check.child NAME DEVICE SIZE FOLDER SECONDS.

Imports are late, so that one that fails is a line of the report.
"""

import importlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.records import Recorder

FINDINGS = "findings.jsonl"


def main() -> int:
    """Run the section; an exception ends the process with exit code 1."""
    name, device, size, folder, seconds = sys.argv[1:]
    signal.signal(signal.SIGTERM, _stop)
    record = Recorder(Path(folder) / FINDINGS)
    check = Check(device, size == "small", Path(folder), record, time.monotonic() + float(seconds))
    try:
        # First of all, because it loads the libraries of CUDA that onnxruntime looks for.
        importlib.import_module("torch")
        importlib.import_module(f"benchmarks.gpu_check.sections.{name}").run(check)
    except ModuleNotFoundError as error:
        record.skip(f"{error.name} is not installed")
    return 0


def _stop(*_: Any) -> None:
    """End so that servers and files of the section are cleaned up."""
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
