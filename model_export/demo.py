"""The demo bundles: every model of the repository's `models/`, built where it is not there yet."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from bert.bundle import read_bundle
from bert.checkpoint.weights import file_hashes
from bert.errors import BundleError, CheckpointError, ExportError
from bert.processor import allowed_threads
from model_export import progress
from model_export.progress import say
from model_export.verify.parity import AUTO

SECONDS = 12.0
"""Seconds that the export of a demo model should take on one core."""
POLL_S, GRACE_S = 0.1, 1.0


def made_by() -> str:
    """Return the tool and its version, as manifests have it."""
    try:
        return f"bert-export {metadata.version('bert-train-serve')}"
    except metadata.PackageNotFoundError:  # run from a source tree
        return "bert-export"


def build_demo(models: Path, out: Path, precision: str, options: Sequence[str]) -> None:
    """Export each folder of `models` that has a `task.json` to a folder of `out`, side by side, with more options.

    A bundle made from the same files by the same version in the same precision (AUTO: in the one that it chose) is left
    as it is. Raises CheckpointError where there is no model, ExportError where one was not exported.
    """
    folders = sorted(file.parent for file in models.glob("*/task.json"))
    if not folders:
        raise CheckpointError(
            f"{models} holds no model (a folder with task.json); run it in the repository's root"
        )
    missing = []
    for folder in folders:
        if is_current(out / folder.name, folder, precision):
            say(f"{out / folder.name} is there")
        else:
            missing.append(folder)
    failed = _export_all(missing, out, [f"--precision={precision}", *options]) if missing else []
    if failed:
        raise ExportError(f"not built: {', '.join(str(out / name) for name in failed)}")


def _export_all(folders: Sequence[Path], out: Path, options: Sequence[str]) -> list[str]:
    """Export each folder by a process of its own, as many at a time as there are cores; return the names of what failed."""
    jobs = min(len(folders), allowed_threads())
    threads = allowed_threads() // jobs
    seconds = SECONDS * len(folders) / jobs
    progress.current.expect(seconds)
    progress.current.begin(f"building {len(folders)} bundles, {jobs} at a time", seconds)
    waiting, running, failed = deque(folders), list[_Child](), list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Child(waiting.popleft(), out, options, threads, Path(scratch)))
                time.sleep(POLL_S)
                for child in [child for child in running if child.process.poll() is not None]:
                    running.remove(child)
                    say(f"{child.target}:\n{child.said()}")
                    failed += [child.target.name] if child.process.returncode else []
                ended = len(folders) - len(waiting) - len(running)
                progress.current.advance((ended + sum(child.done() for child in running)) / len(folders))
        finally:
            for child in running:
                child.end()
    return failed


class _Child:
    """The export of one model."""

    def __init__(self, folder: Path, out: Path, options: Sequence[str], threads: int, scratch: Path) -> None:
        self.target = out / folder.name
        self._said, self._progress = scratch / f"{folder.name}.txt", scratch / f"{folder.name}.json"
        paths = {"checkpoint": folder, "out": self.target, "progress-file": self._progress}
        arguments = [f"--{name}={path}" for name, path in paths.items()]
        with self._said.open("w") as stream:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "model_export.command",
                    *arguments,
                    "--overwrite",
                    "--no-demo",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )

    def done(self) -> float:
        """Return the share of its work that is done."""
        try:
            return float(json.loads(self._progress.read_text("utf-8"))["done"])
        except (OSError, ValueError):  # not yet, or no longer
            return 0.0

    def said(self) -> str:
        """Return its messages."""
        return self._said.read_text("utf-8").rstrip()

    def end(self) -> None:
        """Wait until it has tidied up after an interrupt: that of a terminal has reached it too."""
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # SIGINT is ignored in what a script runs with &
            self.process.wait()


def is_current(bundle: Path, checkpoint: Path, precision: str) -> bool:
    """Tell whether a bundle is what an export of the checkpoint would give. Hashes the checkpoint's files only."""
    try:
        manifest = read_bundle(bundle, verify_hashes=False).manifest
    except BundleError:
        return False
    same_files = manifest.source.get("files") == file_hashes(checkpoint)
    asked = manifest.choice.get("asked") if precision == AUTO else manifest.precision
    return same_files and asked == precision and manifest.made_by == made_by()
