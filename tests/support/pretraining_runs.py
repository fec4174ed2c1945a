"""Pretraining as a user starts it: a settings file, a command, a process, what it prints and leaves."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.engine.records import read_lines

ROOT = Path(__file__).parents[2]
TINY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
SMALL = {
    "objective": "mlm+nsp", "batch_size": 8, "max_tokens": 48, "max_steps": 200, "model": TINY, "learning_rate": 1e-3,
    "save_every_steps": 10, "eval_every_steps": 0, "eval_examples": 8, "threads": 1, "device": "cpu",
}  # fmt: skip
"""A run of a few seconds."""


def arguments(corpus: Path, out: Path, **changes: Any) -> list[str]:
    """Write the settings beside the run's folder; return what follows `python`."""
    file = out.with_suffix(".yaml")
    values = {**SMALL, "corpus": str(corpus), "output_dir": str(out), **changes}
    file.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    return ["-m", "tests.support.undrawn", "training.commands.pretrain", "--config", str(file)]


def start(arguments: Sequence[str], before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    """Start python with these arguments; `before` is a command that runs another."""
    command = [*before, sys.executable, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


def ended(run: subprocess.Popen[str], timeout_s: float = 600) -> str:
    """Wait for the end; return what was printed."""
    _, printed = run.communicate(timeout=timeout_s)
    return printed


def wait_for_steps(run: subprocess.Popen[str], out: Path, steps: int) -> None:
    """Wait until the log has so many steps."""
    while len(losses(out)) < steps:
        assert run.poll() is None, ended(run)
        time.sleep(0.005)


def losses(out: Path) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of each step in the log."""
    lines = [line for line in read_lines(out / "log.jsonl") if "loss" in line]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def step_of(checkpoint: Path) -> int:
    """Return the step that a checkpoint folder is of."""
    return int(checkpoint.name.removeprefix("step-"))


def checkpoints(out: Path) -> list[Path]:
    """Return the checkpoints, the oldest first."""
    return sorted((out / "checkpoints").glob("step-*"))
