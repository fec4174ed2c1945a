"""The tutorial: every command as the page has it, in a folder of its own, and the answers that it shows."""

import json
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ROOT, Block, blocks

PAGE = ROOT / "docs/tutorial.md"
PROCESSOR_SECONDS = 300
"""Most that the steps may take together: what the page says, twice, and not what other work on the machine makes of it."""
PATIENCE_S = 1800
"""Time for any one command."""
SCORE = 0.25
"""Most that a served score may differ from the one shown: 8 bits and other kernels move it, but not the label."""

# What it trains takes two minutes of a core; test_train_export_serve.py takes the same way with tiny models.
pytestmark = [pytest.mark.slow, pytest.mark.soak]


def run(command: str, folder: Path, **variables: str) -> str:
    """Run a block of the page, and return what it writes."""
    # Without the policy the threads of torch wait for one another in loops, for minutes where the cores are shared.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive", **variables}
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@contextmanager
def serving(command: str, folder: Path) -> Iterator[int]:
    """Run the page's bert-serve until the block ends, at a free port, which is given."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BERT_SERVE_PORT": str(port)}
    with subprocess.Popen(["bash", "-ec", f"exec {command}"], cwd=folder, env=environment) as server:
        try:
            ready = f"curl -s -f --retry 600 --retry-delay 1 --retry-all-errors localhost:{port}/health/ready"
            run(ready, folder)
            yield port
        finally:
            server.terminate()


def shown(block: Block, page: list[Block]) -> str:
    """Return the block that follows on the page: what a command writes."""
    return page[page.index(block) + 1].text


def assert_alike(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare a response with the one shown: labels are the same, scores near."""
    ((result,), (wanted,)) = answer["results"], expected["results"]
    assert answer["model"] == expected["model"] and set(result) == set(wanted)
    assert result["label"] == wanted["label"]
    assert result["score"] == pytest.approx(wanted["score"], abs=SCORE)


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    for name in (".venv", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    started, used_before = time.monotonic(), processor_seconds()
    page = sorted((block for block in blocks(PAGE) if block.language), key=lambda block: block.end)
    serve = ""
    seconds: dict[str, float] = {}
    for block in page:
        begun, command = time.monotonic(), block.text
        if block.language != "sh" or command.startswith("make "):
            continue
        if "bert-serve" in command:
            serve = command
        elif command.startswith("curl"):
            with serving(serve, tmp_path) as port:
                answer = run(command.replace("localhost:8000", f"localhost:{port}"), tmp_path)
            assert_alike(json.loads(answer), json.loads(shown(block, page)))
        else:
            written = run(command, tmp_path)
            if command.startswith("head"):
                assert written == shown(block, page)
            elif "bert-finetune" in command:
                assert accuracies(written) == pytest.approx(accuracies(shown(block, page)), abs=0.08)
        seconds[command.split()[0]] = seconds.get(command.split()[0], 0) + time.monotonic() - begun
    total, used = time.monotonic() - started, processor_seconds() - used_before
    each = {Path(name).name: round(taken) for name, taken in seconds.items()}
    print(f"{each} seconds; {total:.0f} in all, {used:.0f} of processor time")
    assert serve and used < PROCESSOR_SECONDS


def processor_seconds() -> float:
    """Return the processor time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def accuracies(text: str) -> list[float]:
    """Return the scores of the last lines of a run: dev, then test."""
    return [float(number) for number in re.findall(r"accuracy (\d\.\d+); the baseline", text)]
