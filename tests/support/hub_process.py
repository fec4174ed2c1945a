"""Programs that talk to a local hub: huggingface_hub reads its environment when it is imported, so each is a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.local_hub import LocalHub
from tests.support.process import ROOT

RESOLVE = """
import sys
from bert.checkpoint.base_models import resolve_checkpoint
from bert.errors import BertError
try:
    print(resolve_checkpoint(sys.argv[1]))
except BertError as error:
    sys.exit(str(error))
"""
"""Prints the folder of a checkpoint, or the reason why there is none."""


def hub_variables(hub: LocalHub, home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program that uses a hub with a cache of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "BERT_"))}
    return {**own, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **more}


def start(
    arguments: list[str], variables: dict[str, str], before: Callable[[], None] | None = None
) -> "subprocess.Popen[str]":
    """Start Python with these arguments."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=variables,
        preexec_fn=before,
    )


def resolve(
    name: str, variables: dict[str, str], before: Callable[[], None] | None = None
) -> tuple[str, str]:
    """Return the folder that a program finds by a name, "" for none, and what it says on standard error."""
    process = start(["-c", RESOLVE, name], variables, before)
    output, error = process.communicate(timeout=300)
    assert "Traceback" not in error, error
    assert (process.returncode == 0) == bool(output), error
    return output.strip(), error
