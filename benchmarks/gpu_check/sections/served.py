"""A real server over HTTP: lists of texts, and single ones."""

import importlib
import json
import urllib.request
from typing import Any

from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.checkpoints import shape, write_checkpoint
from benchmarks.gpu_check.sections.parity import NARROW, SPECS, VOCABULARY
from benchmarks.serve.baselines.registry import CONTENDERS
from benchmarks.serve.load.load import closed_loop
from benchmarks.serve.load.running import BaselineError, Running, free_port, last_lines, server
from benchmarks.serve.load.service_command import service_command
from benchmarks.serve.load.workloads import LIST_TEXTS, workload
from model_export.export import export
from model_export.verify.parity import Tolerance

WORKLOADS: dict[str, tuple[int, ...]] = {"lists": (1, 8, 32), "mixed": (1, 64)}
"""Workload → connections of its closed loops."""
SMALL_WORKLOADS: dict[str, tuple[int, ...]] = {"lists": (1,)}
RESERVE_S = 22.0
"""Seconds that the start of the server leaves for the loops."""


def run(check: Check) -> None:
    """Export a BERT-base, serve it with default settings and ask it."""
    importlib.import_module("service.http.app")  # a package that the server lacks is told here
    if not check.has_engine:
        check.record.skip("this onnxruntime has no CUDA")
        return
    bundle = check.folder / "bundle"
    config = shape("bert", **check.pick({}, NARROW), vocab_size=VOCABULARY)
    folder = write_checkpoint(check.folder / "checkpoint", config, SPECS["classification"])
    export(folder, bundle, "fp16" if check.on_gpu else "fp32", tolerance_of=Tolerance.of)
    port, log = free_port(), check.folder / "server.log"
    try:
        work = _requests("lists", f"http://127.0.0.1:{port}", 2)
        command = service_command([bundle], port)
        with server(command, port, work[0][0], log, max(check.left_s - RESERVE_S, 10.0)) as running:
            check.record.note(f"The server runs on {_provider(running)}.")
            for name, connections in check.pick(WORKLOADS, SMALL_WORKLOADS).items():
                for number in connections:
                    with check.record.step(f"{name}, {number} connections"):
                        _loop(check, running, name, number)
    except BaselineError:
        raise
    except Exception as error:
        raise RuntimeError(f"{error}\n{last_lines(log)}") from error


def _requests(name: str, url: str, count: int) -> list[list[bytes]]:
    work = workload(name, None, count * (LIST_TEXTS if name == "lists" else 1))
    return CONTENDERS["ours"].requests(url, work.kind, work.jobs)


def _loop(check: Check, running: Running, name: str, connections: int) -> None:
    requests = _requests(name, running.url, check.pick(64, 2))
    closed_loop(running.url, requests, connections, check.pick(1.0, 0.1))
    load = closed_loop(running.url, requests, connections, check.pick(3.0, 0.5))
    texts = LIST_TEXTS if name == "lists" else 1
    check.record.row(
        "served",
        texts=f"{texts} a request",
        connections=connections,
        **{
            "requests/s": round(load.requests_per_s, 1),
            "texts/s": round(texts * load.requests_per_s, 1),
            "p50 ms": round(load.percentile_ms(0.5), 2),
            "p99 ms": round(load.percentile_ms(0.99), 2),
        },
    )


def _provider(running: Running) -> Any:
    """Return the provider that the service names."""
    with urllib.request.urlopen(f"{running.url}/models", timeout=10) as answer:
        models = json.load(answer)["models"]
    return models[0].get("provider")
