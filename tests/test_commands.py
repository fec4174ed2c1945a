"""What every command has in common: help and wrong settings at once, and a stop that is not taken for success."""

import pickle
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from bert.settings import CommandSettings, read_settings
from model_export.cli import ExportSettings
from service.bulk.settings import PredictSettings
from service.settings import ServeSettings
from training.averaging.settings import AverageSettings
from training.corpus.settings import PrepareSettings
from training.evaluation.settings import EvaluateSettings
from training.mining.settings import MineSettings
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings

ROOT = Path(__file__).parents[1]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "scripts"
]
HEAVY = ("torch", "onnxruntime", "onnx", "datasets", "pyarrow", "transformers", "pandas")
RUN = """
import atexit, importlib, sys
module, heavy, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
atexit.register(lambda: print("loaded:", *(name for name in heavy if name in sys.modules), file=sys.stderr))
sys.argv = [command, "--help"]
try:
    code = importlib.import_module(module).main()
except SystemExit as ended:
    code = ended.code
print("help:", code or 0)
sys.argv = [command, "--no-such-setting"]
sys.exit(importlib.import_module(module).main())
"""


@pytest.mark.parametrize("command", sorted(SCRIPTS))
def test_help_and_a_settings_error_load_no_heavy_library(command: str) -> None:
    module, _, function = SCRIPTS[command].partition(":")
    assert function == "main"
    given = [sys.executable, "-c", RUN, module, ",".join(HEAVY), command]
    ended = subprocess.run(given, cwd=ROOT, capture_output=True, text=True)
    assert "usage: " in ended.stdout.lower() and ended.stdout.splitlines()[-1] == "help: 0"
    assert ended.returncode != 0 and "--no-such-setting" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (PrepareSettings, "sources: [a.txt]\noutput_dir: out\n"),
        (PretrainSettings, "corpus: a\noutput_dir: out\nmax_steps: 1\nmasking: {rate: 0.3}\n"),
        (FinetuneSettings, "task: ner\noutput_dir: out\nlora: {rank: 4}\n"),
        (EvaluateSettings, "checkpoints: [a]\ntasks: {a: a.yaml}\noutput_dir: out\n"),
        (AverageSettings, "checkpoints: [a, b]\noutput_dir: out\nadapter_rank: 64\n"),
        (MineSettings, "pairs: [a.csv]\noutput: b.jsonl\n"),
        (ExportSettings, "checkpoint: a\nout: b\n"),
        (PredictSettings, "paths: [a, b]\nout: c\ntop_k: 2\n"),
        (ServeSettings, "bundles: [a]\napi_key: correct-horse\n"),
    ],
)
def test_settings_of_every_command_come_from_a_file_and_can_be_pickled(
    kind: type[CommandSettings], content: str, tmp_path: Path
) -> None:
    """Worker processes get them."""
    file = tmp_path / "settings.yaml"
    file.write_text(content, encoding="utf-8")
    settings = read_settings(kind, ["--config", str(file)])
    assert type(settings) is kind and settings.config == file
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_ctrl_c_in_an_export_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    """As a pipeline sees it: 128 + SIGINT, and no traceback."""
    out = tmp_path / "bundles"
    arguments = ["--demo", "--precision", "fp32", "--out", str(out)]
    command = [sys.executable, "-m", "model_export.cli", *arguments]
    said = tmp_path / "said"
    with said.open("w") as stream, subprocess.Popen(command, cwd=ROOT, stderr=stream) as run:
        try:
            deadline = time.monotonic() + 300
            while not any(out.rglob("*.onnx")):  # a graph of an unfinished bundle
                assert run.poll() is None and time.monotonic() < deadline, said.read_text()
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            assert run.wait(120) == 130, said.read_text()
        finally:
            run.kill()
    printed = said.read_text()
    assert "Traceback" not in printed and printed.rstrip().endswith("is not there")
    assert not [file for file in out.rglob("*") if file.is_file()]
