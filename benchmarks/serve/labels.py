"""Requests per second and memory with ten labels in each request: GLiNER beside `gliner`, zero-shot beside `transformers`.

    python -m benchmarks.serve.labels --gliner-python .venv-gliner/bin/python    # ten minutes, on a quiet machine

With `--fast-gliner-python`, an environment with fast-gliner 0.3.2, fastapi and uvicorn, GLiNER is also beside
`fast-gliner`, a process for each core; `gliner` exports the model for it, and then needs onnx and onnxscript too.
The models are random: bodies of 6 and 12 layers, 768 wide. The weights of a GLiNER are such that few spans pass, as of a
trained one. 8 bits are taken whatever they change. The servers take turns, round after round. Prints a table.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import command_line, machine_line, parser_of
from benchmarks.hub.random_models import write_gliner
from benchmarks.serve.baselines.encoder_shapes import write_encoder
from benchmarks.serve.load.loops import closed_loop
from benchmarks.serve.load.process_tree import watched
from benchmarks.serve.load.running import (
    ENVIRONMENT,
    free_port,
    prepare_process,
    server,
    service_command,
)
from benchmarks.serve.load.texts import made_up_texts
from benchmarks.serve.load.wire import request_bytes
from model_export.cli import main as export

LABELS = (
    "person",
    "company",
    "city",
    "country",
    "date",
    "product",
    "event",
    "law",
    "language",
    "amount of money",
)
INFERENCE = ("entailment", "neutral", "contradiction")
LAYERS = {"small": 6, "base": 12}
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A server: its module and model, or ours and a bundle."""

    name: str
    place: Path
    path: str
    python: str = ""
    module: str = ""
    mode: str = "labels"
    workers: int = 1

    def command(self, port: int) -> list[str]:
        """Return the command that serves on a port."""
        if not self.module:
            return service_command([self.place], port)
        module = f"benchmarks.serve.baselines.{self.module}"
        return [
            *(self.python, "-m", module, "--mode", self.mode, "--workers", str(self.workers)),
            *("--folder", str(self.place), "--port", str(port)),
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parse(arguments)
    print(machine_line("onnxruntime", "torch", "transformers"))
    print(f"Command: {command_line('serve.labels', arguments)}\n")
    print(
        "| model | server | requests/s | p50 ms | beside the first | peak MB |\n|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            kind, _, size = model.partition("-")
            contenders = prepare(kind, size, (args.folder or Path(folder)) / model, args)
            if args.rounds:
                compare(model, contenders, args)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add(
        "--models",
        default="gliner-small,gliner-base,nli-base",
        help="comma-separated, of these three and nli-small",
    )
    add(
        "--gliner-python",
        default=sys.executable,
        help="interpreter of an environment with gliner, fastapi and uvicorn",
    )
    add("--fast-gliner-python", default="", help="likewise with fast-gliner; without it, it takes no part")
    add(
        "--folder",
        type=Path,
        help="keep models and bundles there, and take what is there; with --rounds 0 only make them",
    )
    add("--connections", type=int, default=32)
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=10.0, help="of each closed loop")
    add("--log", type=Path, default=Path("runs/labels.log"), help="the servers' log")
    return parser.parse_args(arguments)


def prepare(kind: str, size: str, folder: Path, args: argparse.Namespace) -> list[Contender]:
    """Write a random model and its bundles; return the servers, the one to compare with first."""
    model, names = folder / "model", list[str]()
    is_new = not model.exists()
    if kind == "gliner":
        if is_new:
            write_gliner("bert-base", model, num_hidden_layers=LAYERS[size])
        theirs = Contender("FastAPI + gliner", model, "/ner", args.gliner_python, "gliner_server")
    else:
        if is_new:
            write_encoder("bert-base", model, num_hidden_layers=LAYERS[size])
        theirs = Contender(
            "FastAPI + pipeline", model, "/classify", sys.executable, "pipeline_server", "zero-shot"
        )
        names = ["--labels", ",".join(INFERENCE)]
    found = [theirs]
    if kind == "gliner" and args.fast_gliner_python:
        exporting = [args.gliner_python, "-m", "benchmarks.serve.baselines.export_gliner", str(model)]
        if not (model / "onnx").exists():
            args.log.parent.mkdir(parents=True, exist_ok=True)
            with args.log.open("ab") as log:
                environment = {**os.environ, **ENVIRONMENT}
                subprocess.run(exporting, env=environment, check=True, stdout=log, stderr=log)
        python, cores = args.fast_gliner_python, len(os.sched_getaffinity(0))
        name = "FastAPI + fast-gliner"
        found.append(Contender(name, model, theirs.path, python, "fast_gliner_server", workers=cores))
    for precision in ("fp32", "int8"):
        bundle = folder / precision
        common = ["--checkpoint", str(model), "--out", str(bundle), "--precision", precision, *names]
        common += ["--parity-texts", "few"] if precision == "fp32" else []
        tolerances = ["--tolerance-labels", "0", "--tolerance-neighbours", "1"]
        if not bundle.exists() and (status := export([*common, *tolerances])):
            raise SystemExit(status)
        found.append(Contender(f"ours, {precision}", bundle, theirs.path))
    return found


def compare(model: str, contenders: Sequence[Contender], args: argparse.Namespace) -> None:
    """Measure the servers in turns, and print their lines."""
    bodies = [{"text": text, "labels": LABELS} for text in made_up_texts(500)]
    rates, p50s, peaks = (defaultdict[str, list[float]](list) for _ in range(3))
    for _ in range(args.rounds):
        for each in contenders:
            port = free_port()
            requests = [(request_bytes(f"http://127.0.0.1:{port}", each.path, body),) for body in bodies]
            with server(each.command(port), port, requests[0][0], args.log, START_S) as running:
                closed_loop(running.url, requests, 8, 2.0)
                with watched(running.pid) as usage:
                    load = closed_loop(running.url, requests, args.connections, args.seconds)
            rates[each.name].append(load.requests_per_s)
            p50s[each.name].append(load.percentile_ms(0.5))
            peaks[each.name].append(usage.peak_bytes / 1e6)
    first = rates[contenders[0].name]
    for each in contenders:
        ratio = median(mine / theirs for mine, theirs in zip(rates[each.name], first, strict=True))
        figures = [f"{median(rates[each.name]):.2f}", f"{median(p50s[each.name]):.0f}", f"{ratio:.2f}"]
        print(f"| {model} | {each.name} | {' | '.join(figures)} | {max(peaks[each.name]):.0f} |", flush=True)


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
