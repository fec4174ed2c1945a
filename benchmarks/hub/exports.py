"""Measure the seconds from a checkpoint on disk to an answer, and the memory of `bert-serve --model` and `bert-export`.

    python -m benchmarks.hub.exports                        # all, half an hour on a quiet machine
    python -m benchmarks.hub.exports minilm-l6 bert-base

The checkpoints are classifiers of published shapes with random weights, and a GLiNER. Each is served by name with an empty
cache until 8 bits answer, or are refused; then once more, with the cache; then exported by itself. Memory is the most of all
processes together. Prints a table in Markdown with machine, date and command, and writes it with a JSON file beside it.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.hub.random_models import NAMES, write_model
from benchmarks.serve.load.process_tree import cpu_seconds, watched
from benchmarks.serve.load.running import BaselineError, free_port, last_lines, prepare_process, process
from benchmarks.serve.load.wire import RefusedError, ask, request_bytes
from bert.bundle import MANIFEST, MODEL

EVERY_S, MEMORY_EVERY_S = 0.1, 1.0  # the memory of large processes takes a tenth of a second to read
STEP = re.compile(r"^  (.+) \.\.\. ([\d.]+) s$", re.MULTILINE)
SHORT = {
    r"reading .*": "read",
    r"writing .*": "write",
    r"building the (\w+) graph": r"build \1",
    r"timing both": "time",
    r"comparing (\d+) texts with the checkpoint": r"compare \1",
    r"comparing (\d+) texts with fp32": r"judge \1",
}
"""Steps as bert-export names them, and as the table does."""
COLUMNS = (
    "model",
    "parameters",
    "first answer, s",
    "8 bits, s",
    "second start, s",
    "peak memory",
    "bert-export, s (CPU s)",
    "by step, s",
    "its peak memory",
)


@dataclass(slots=True)
class Measured:
    """Seconds and memory of one model."""

    model: str
    weights_bytes: int
    """Size of its float32 weights."""
    first_answer_s: float = 0.0
    final_s: float = 0.0
    """Seconds until the graph serves that `auto` takes."""
    precision: str = ""
    """Precision of that graph."""
    why: str = ""
    """Reason why it was taken."""
    second_start_s: float = 0.0
    serve_peak_bytes: int = 0
    export_s: float = 0.0
    export_cpu_s: float = 0.0
    export_peak_bytes: int = 0
    steps: list[tuple[str, float]] = field(default_factory=list)
    failure: str = ""

    def row(self) -> str:
        """Return its line in the table."""
        final = f"{self.final_s:.1f}" if self.precision == "int8" else f"{self.final_s:.1f}: {self.why}"
        cells = [
            self.model,
            f"{self.weights_bytes / 4e6:.0f} M",
            f"{self.first_answer_s:.1f}",
            final,
            f"{self.second_start_s:.1f}",
            self._memory(self.serve_peak_bytes),
            f"{self.export_s:.1f} ({self.export_cpu_s:.0f})",
            ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.steps),
            self._memory(self.export_peak_bytes),
        ]
        if self.failure:
            cells[2:] = [self.failure, *[""] * (len(cells) - 3)]
        return f"| {' | '.join(cells)} |"

    def _memory(self, size: int) -> str:
        return f"{size / 1e9:.2f} GB ({size / self.weights_bytes:.1f} x)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models; returns 1 if one failed."""
    args = parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    head = [
        f"`{command_line('hub.exports', arguments).strip()}`",
        machine_line("onnxruntime", "numpy"),
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    print("\n".join(head), flush=True)
    found = []
    for name in args.models:
        with tempfile.TemporaryDirectory(dir=args.out) as folder:
            found.append(measure(name, Path(folder), args.patience))
        print(found[-1].row(), flush=True)
    rows = [measured.row() for measured in found]
    (args.out / "exports.md").write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    content = json.dumps([asdict(measured) for measured in found], indent=2)
    (args.out / "exports.json").write_text(content + "\n", encoding="utf-8")
    return int(any(measured.failure for measured in found))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for each command")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of the table and of the models"
    )
    args = parser.parse_args(arguments)
    if unknown := sorted(set(args.models) - set(NAMES)):
        parser.error(f"no such model: {', '.join(unknown)}; known are {', '.join(NAMES)}")
    args.models = args.models or [name for name in NAMES if name != "tiny"]
    return args


def measure(name: str, folder: Path, patience_s: float) -> Measured:
    """Write a checkpoint, serve and export it; what fails is in `failure`."""
    checkpoint = folder.resolve() / name
    write_model(name, checkpoint)
    found = Measured(name, (checkpoint / "model.safetensors").stat().st_size)
    try:
        serve(found, checkpoint, patience_s)
        export(found, checkpoint, patience_s)
    except BaselineError as error:
        found.failure = " ".join(str(error).split())
    return found


def serve(found: Measured, checkpoint: Path, patience_s: float) -> None:
    """Serve a checkpoint until the graph answers that it is served with in the end, and once more."""
    cache = checkpoint.with_name("cache")
    with _served(found, checkpoint, cache, patience_s) as (url, began, until):
        found.first_answer_s = time.monotonic() - began
        until(lambda: _is_final(found, cache, url))
        found.final_s = time.monotonic() - began
    with _served(found, checkpoint, cache, patience_s) as (_, began, _):
        found.second_start_s = time.monotonic() - began


@contextmanager
def _served(
    found: Measured, checkpoint: Path, cache: Path, patience_s: float
) -> Iterator[tuple[str, float, Callable[[Callable[[], bool]], None]]]:
    """Serve, and give the address, the moment of the start and a function that waits, once a text is answered."""
    port, log = free_port(), checkpoint.with_name("serve.log")
    command = [sys.executable, "-m", "service.cli", "--port", str(port), "--model", str(checkpoint)]
    url, began = f"http://127.0.0.1:{port}", time.monotonic()

    def until(holds: Callable[[], bool]) -> None:
        while not holds():
            if started.poll() is not None or time.monotonic() > began + patience_s:
                raise BaselineError(f"bert-serve ended, or is too slow: {last_lines(log)}")
            time.sleep(EVERY_S)

    text = request_bytes(url, "/classify", {"text": "It was a warm film."})
    if found.model.startswith("gliner-"):
        text = request_bytes(url, "/ner", {"text": "It was a warm film.", "labels": ["film", "person"]})
    with process([*command, "--model-cache", str(cache)], log) as started:
        with watched(started.pid, MEMORY_EVERY_S) as usage:
            until(lambda: _asked(url, text) is not None)
            yield url, began, until
        found.serve_peak_bytes = max(found.serve_peak_bytes, usage.peak_bytes)


def export(found: Measured, checkpoint: Path, patience_s: float) -> None:
    """Export a checkpoint by itself."""
    log, out = checkpoint.with_name("export.log"), checkpoint.with_name("bundle")
    command = [
        sys.executable,
        "-m",
        "model_export.command",
        "--checkpoint",
        str(checkpoint),
        "--out",
        str(out),
    ]
    began = time.monotonic()
    with process(command, log) as started, watched(started.pid, MEMORY_EVERY_S) as usage:
        while started.poll() is None and time.monotonic() < began + patience_s:
            found.export_cpu_s = cpu_seconds(started.pid)
            time.sleep(EVERY_S)
    found.export_s, found.export_peak_bytes = time.monotonic() - began, usage.peak_bytes
    if started.returncode:
        raise BaselineError(f"bert-export ended with {started.returncode}: {last_lines(log)}")
    found.steps = [(_short(step), float(seconds)) for step, seconds in STEP.findall(log.read_text())]


def _is_final(found: Measured, cache: Path, url: str) -> bool:
    """Tell whether the graph serves that `auto` took, and take in which one that is."""
    for manifest in cache.rglob(MANIFEST):
        content = json.loads(manifest.read_text("utf-8"))
        if content["choice"].get("asked") == "auto" and (manifest.parent / MODEL).is_file():
            found.precision, found.why = content["precision"], content["choice"]["why"]
            models = _asked(
                url, f"GET /models HTTP/1.1\r\nhost: {url.removeprefix('http://')}\r\n\r\n".encode()
            )
            return models is not None and models["models"][0]["precision"] == found.precision
    return False


def _asked(url: str, message: bytes) -> Any:
    """Return the response; None if there is none yet."""
    try:
        return ask(url, message)
    except (OSError, EOFError, RefusedError):
        return None


def _short(step: str) -> str:
    for pattern, name in SHORT.items():
        step = re.sub(f"^{pattern}$", name, step)
    return step


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
