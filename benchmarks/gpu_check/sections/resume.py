"""The same pretraining run three times: whole, whole again, and resumed in a new process from the middle of the first."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.check import Check
from benchmarks.gpu_check.corpus import write_corpus
from benchmarks.gpu_check.sections.training import model_values
from benchmarks.serve.load.running import ROOT
from training.core.records import LOG, read_steps
from training.pretrain import pretrain
from training.pretraining.settings import PretrainSettings

VARIANTS = {"varlen": 0.0, "mask and dropout": 0.1}
"""Form of attention → its dropout, which decides it on a GPU."""


def run(check: Check) -> None:
    """Compare losses, gradient norms and weights."""
    corpus = write_corpus(check.folder / "corpus", check.pick(1000, 40))
    for name, dropout in list(VARIANTS.items())[: check.pick(2, 1)]:
        with check.record.step(name):
            _variant(check, name, corpus, dropout)


def _variant(check: Check, name: str, corpus: Path, dropout: float) -> None:
    steps = check.pick(40, 6)
    folder = check.folder / name.replace(" ", "-")
    values: dict[str, Any] = {
        "corpus": str(corpus),
        "objective": "mlm",
        "examples": "full_sentences",
        "model": {
            **model_values(check),
            **check.pick({"num_hidden_layers": 6}, {}),
            "attention_probs_dropout_prob": dropout,
        },
        "max_tokens": check.pick(128, 32),
        "batch_size": check.pick(128, 4),
        "max_steps": steps,
        "save_every_steps": steps // 2,
        "eval_every_steps": 0,
        "eval_examples": 0,
        "device": check.device,
    }
    whole = folder / "whole"
    pretrain(PretrainSettings(**values, output_dir=whole))
    with check.record.step(f"{name}, again"):
        pretrain(PretrainSettings(**values, output_dir=folder / "again"))
        _compare(check, name, whole, folder / "again", 0)
    with check.record.step(f"{name}, resumed"):
        resumed = folder / "resumed"
        _resume(values, whole, resumed, steps // 2)
        _compare(check, name, whole, resumed, steps // 2)


def _resume(values: dict[str, Any], whole: Path, resumed: Path, done: int) -> None:
    """Give a new run the checkpoint of the middle, and start the command. Raises RuntimeError where it fails."""
    saves = sorted((whole / "checkpoints").glob("step-*"))
    middle = next(save for save in saves if int(save.name.removeprefix("step-")) == done)
    shutil.copytree(middle, resumed / "checkpoints" / middle.name)
    settings = resumed.with_suffix(".yaml")
    settings.write_text(json.dumps({**values, "output_dir": str(resumed)}), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "training.commands.pretrain", "--config", str(settings)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"the resumed run ended with {ended.returncode}: {ended.stderr[-1500:]}")


def _compare(check: Check, name: str, whole: Path, other: Path, done: int) -> None:
    first, second = ({step["step"]: step for step in read_steps(folder / LOG)} for folder in (whole, other))
    steps = [step for step in first if step > done]
    if missing := [step for step in steps if step not in second]:
        raise RuntimeError(f"{other.name} lacks the steps {missing[:5]}")
    apart = {
        key: max(abs(first[step][key] - second[step][key]) for step in steps) for key in ("loss", "grad_norm")
    }
    weights = [(folder / "model/model.safetensors").read_bytes() for folder in (whole, other)]
    check.record.row(
        "resume",
        attention=name,
        run=other.name,
        steps=len(steps),
        identical=weights[0] == weights[1] and not any(apart.values()),
        **{
            "loss apart": f"{apart['loss']:.1e}",
            "gradient norm apart": f"{apart['grad_norm']:.1e}",
            "weights identical": weights[0] == weights[1],
        },
    )
