"""Runs of training, each killed at random moments until it has ended; a script, so that it can fork.

Each line of its input is a run in JSON: {"out": ..., "processes": ..., "kills": ..., "corpus": ..., "changes": {...}}.
Without a corpus it is a fine-tuning, and the changes are its settings.
Each line of its output says how often that run was killed, and the exit codes of its last processes.
"""

import json
import logging
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.undrawn import undrawn
from training.engine.records import read_lines
from training.finetune import finetune
from training.pretrain import pretrain
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Runs:
    """Runs by a process that has imported torch once and forks."""

    process: subprocess.Popen[str]
    errors: Path
    """What all of them write to standard error."""

    def train(
        self, out: Path, processes: int, kills: int = 0, corpus: Path | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Train to the end, killed so often."""
        asked = {"out": str(out), "processes": processes, "kills": kills, "changes": changes}
        if corpus is not None:
            asked["corpus"] = str(corpus)
        assert self.process.stdin and self.process.stdout
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        assert select.select([self.process.stdout], [], [], 600)[0], "no end of the run in ten minutes"
        line = self.process.stdout.readline()
        assert line, self.errors.read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(line)
        assert not any(result["codes"]), (result, self.errors.read_text(encoding="utf-8"))
        return result


@contextmanager
def forking(errors: Path) -> Iterator[Runs]:
    """Run the process that forks until the block ends; `errors` is a file to write."""
    command, pipe = [sys.executable, "-m", "tests.support.kills"], subprocess.PIPE
    with (
        errors.open("w", encoding="utf-8") as stream,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=stream, text=True) as process,
    ):
        try:
            yield Runs(process, errors)
        finally:
            process.terminate()


def settings_of(corpus: Path, out: Path, changes: dict[str, Any]) -> PretrainSettings:
    values = {
        "corpus": corpus, "output_dir": out, "objective": "mlm+nsp", "batch_size": 8, "max_tokens": 48, "max_steps": 60,
        "model": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64},
        "learning_rate": 1e-3, "save_every_steps": 3, "eval_every_steps": 0, "threads": 1, "eval_examples": 8,
    }  # fmt: skip
    return PretrainSettings(**{**values, **changes})


def start(settings: PretrainSettings | FinetuneSettings, rank: int, world: int, port: int) -> int:
    """Fork one process of the run; return its id."""
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    code = 1
    try:
        if isinstance(settings, FinetuneSettings):
            finetune(settings, "kills")
        else:
            pretrain(settings, "kills")
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    settings: PretrainSettings | FinetuneSettings,
    world: int,
    steps_to_live: int | None,
    jitter_s: float = 0.0,
) -> list[int]:
    """Run all processes; return their exit codes, negative for a signal.

    They are killed `jitter_s` after the log has `steps_to_live` new steps; with 0 that is in the middle of starting.
    """
    port, log = free_port(), settings.output_dir / "log.jsonl"
    before = len(list(read_lines(log)))
    children = [start(settings, rank, world, port) for rank in range(world)]
    if steps_to_live is not None:
        while steps_to_live and lived(log, before) < steps_to_live and not has_ended(children[0]):
            time.sleep(0.002)
        time.sleep(jitter_s)
        for child in children:
            os.kill(child, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def lived(log: Path, before: int) -> int:
    """Return how many lines a run has added; it first takes those away that came after its last checkpoint."""
    return abs(len(list(read_lines(log))) - before)


def has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def killed_run(
    out: str, processes: int, kills: int, changes: dict[str, Any], corpus: str | None = None
) -> dict[str, Any]:
    """Run until the end, after so many kills."""
    settings: PretrainSettings | FinetuneSettings
    if corpus is None:
        settings = FinetuneSettings(output_dir=out, **changes)
    else:
        settings = settings_of(Path(corpus), Path(out), changes)
    draw, killed = random.Random(7), 0
    for _ in range(kills):
        codes = run(settings, processes, draw.randrange(8), draw.uniform(0.0, 0.02))
        killed += -signal.SIGKILL in codes
    return {"killed": killed, "codes": run(settings, processes, None)}


def main() -> None:
    logging.basicConfig(level=logging.INFO)  # which says whether a run is gone on with
    with undrawn():
        for line in sys.stdin:
            print(json.dumps(killed_run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
