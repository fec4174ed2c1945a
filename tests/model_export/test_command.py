"""The entry point of `bert-export`, before its settings are read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.process import ROOT


def test_an_interrupt_during_the_imports_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("import time\nprint('imported', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from model_export.command import main; sys.exit(main())"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert process.stdout is not None and process.stdout.readline() == "imported\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (130, "bert-export: interrupted; nothing was begun\n")


def test_the_command_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "model_export.command", "--checkpoint", "/no/folder", "--out", "/no/out"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert process.returncode == 1 and process.stderr.startswith("bert-export: /no/")
