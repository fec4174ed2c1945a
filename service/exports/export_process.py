"""Runs `bert-export` as a child: the service itself imports neither onnx nor huggingface_hub."""

import codecs
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from bert.errors import BundleError
from service.exports.export_cache import FIRST
from service.exports.named_model import NamedModel
from service.exports.progress import progress_file
from service.logs import LOGGER
from service.system import handled

INSTALL = 'pip install ".[export]" in a clone of the repository'
GRACE_S = 2.0
"""Seconds that a child has to tidy up after an interrupt, before it is killed."""
MAX_LINE = 2**16
"""Characters kept of a line that has not ended yet."""
_POLL_S = 0.05
_SETTINGS = "BERT_EXPORT_"
"""Beginning of the variables that would change how a model is exported."""
_PREFIX = "bert-export: "
_MEANINGS = {
    "SIGKILL": ": the machine may be out of memory",
    "SIGBUS": ": a file of the checkpoint was cut short, or its disk failed, while it was read",
}
"""Signal that ended a child → its likely cause, as the end of a message."""
_CHILD = """
import runpy, sys
sys.path[:] = {path!r}
if {in_background!r}:
    from service.system import run_in_background
    run_in_background()
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
"""Code of the child, with its parent's import path. It runs with -P: `python -c` and `python -m` would look into the
working directory first."""


def look_up(model: NamedModel, lock: int, *, as_log: bool) -> str:
    """Return the commit that a model of the hub stands for now. Raises BundleError with the reason why there is none."""
    _require(model, "huggingface_hub")
    return _run(model, "bert.checkpoint.hub", [str(model.hub)], lock, as_log=as_log)


def export(
    model: NamedModel,
    commit: str,
    out: Path,
    precision: str,
    lock: int,
    *,
    as_log: bool,
    is_stopped: Callable[[], bool] | None = None,
) -> None:
    """Write a model's bundle to `out`. Raises BundleError with the reason of an export that failed.

    With `is_stopped` it is work in the background: the child has the lowest priority and writes its progress file, and it
    ends once that is true.
    """
    hub = model.hub
    _require(model, "onnx", "safetensors", *(["huggingface_hub"] if hub is not None else []))
    checkpoint = model.checkpoint if hub is None else str(hub.at(commit))
    options = {"checkpoint": checkpoint, "out": str(out), "name": model.name, "precision": precision}
    if precision == FIRST:
        options |= {"precision": "fp32", "parity-texts": "few"}
    if is_stopped is not None:
        options["progress-file"] = str(progress_file(out))
    arguments = [f"--{name}={value}" for name, value in options.items()]
    _run(model, "model_export.cli", [*arguments, "--overwrite"], lock, as_log=as_log, is_stopped=is_stopped)


def _require(model: NamedModel, *packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise BundleError(
            f"{model.checkpoint} has to be exported before it is served, which needs {', '.join(missing)}: {INSTALL}; or "
            "export it elsewhere, and name its bundle with --bundles"
        )


def _run(
    model: NamedModel,
    module: str,
    arguments: Sequence[str],
    lock: int,
    *,
    as_log: bool,
    is_stopped: Callable[[], bool] | None = None,
) -> str:
    """Run a module to its end, with its progress on standard error; return the last line of its output.

    The child inherits the lock: it is held as long as either lives. Raises BundleError with the child's own reason. A
    signal that stops this process ends the child first; in another thread than the main one `is_stopped` does.
    """
    code = _CHILD.format(path=sys.path, module=module, in_background=is_stopped is not None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)},
        process_group=0,  # Ctrl-C reaches only this process
        pass_fds=[lock],
    )
    assert process.stdout is not None and process.stderr is not None
    output, relay = _Relay(process.stdout, is_muted=True), _Relay(process.stderr, as_log=as_log)
    output.start()
    relay.start()
    stops: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with handled(lambda number, _: stops.append(number)) if is_main else nullcontext():
            while process.poll() is None and not stops and not (is_stopped and is_stopped()):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
    finally:
        if process.poll() is None:
            relay.is_muted = True
            _end(process)
    for number in stops:
        signal.raise_signal(number)  # as if it had come without a child
    output.join()
    relay.join()
    if process.returncode:
        raise BundleError(_reason(model, process.returncode, relay.last_line))
    return output.last_line


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(model: NamedModel, code: int, last_line: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"the export of {model.checkpoint} was ended by {name}{_MEANINGS.get(name, '')}"
    return last_line.removeprefix(_PREFIX) or f"the export of {model.checkpoint} ended with code {code}"


class _Relay(threading.Thread):
    """Reads a child's output as it comes, so that the child never waits for a full pipe, and keeps the last line.

    Unless it is muted, the output goes on to the terminal's standard error, or line by line to the log.
    """

    def __init__(self, stream: IO[bytes], *, as_log: bool = False, is_muted: bool = False) -> None:
        super().__init__(name="relay", daemon=True)
        self._stream, self._as_log, self.is_muted = stream, as_log, is_muted
        self.last_line = ""

    def run(self) -> None:
        decoder, line = codecs.getincrementaldecoder("utf-8")("replace"), ""
        with self._stream as stream:
            while part := os.read(stream.fileno(), 1 << 16):
                text = decoder.decode(part)
                if not self._as_log and not self.is_muted:
                    print(text, end="", file=sys.stderr, flush=True)
                *lines, line = (line + text).split("\n")
                line = line[-MAX_LINE:]
                for each in lines:
                    self._take(each)
        self._take(line)

    def _take(self, line: str) -> None:
        if not line.strip():
            return
        self.last_line = line.strip()
        if self._as_log and not self.is_muted:
            LOGGER.info("%s", self.last_line)
