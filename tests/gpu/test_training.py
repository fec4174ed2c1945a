"""Training on a GPU: both forms of attention and compiled layers learn alike, and a resumed run is the unbroken one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.train.made_up import write_corpus, write_shape, write_texts
from tests.support.gpu import DEVICE, ON_GPU, pick
from tests.support.pretraining_runs import ROOT, checkpoints, losses
from training.data_file import DataFile
from training.finetune import finetune
from training.pretrain import pretrain
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings

pytestmark = pytest.mark.gpu

MODEL = pick(
    {"num_hidden_layers": 6, "vocab_multiple": 64},
    {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64},
)
STEPS = pick(20, 6)
Losses = tuple[int, float, float]
"""Step, loss and norm of the gradient."""
# FlashAttention inside each text knows no dropout; one that drops next to nothing has the scores with a mask.
DROPOUT = {"varlen": 0.0, "mask": 1e-9}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "made-up", pick(1000, 40))


def values_of(corpus: Path, out: Path, dropout: float, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run that saves in its middle."""
    return {
        "corpus": str(corpus), "output_dir": str(out), "objective": "mlm", "examples": "full_sentences",
        "model": {**MODEL, "attention_probs_dropout_prob": dropout}, "device": DEVICE,
        "max_tokens": pick(128, 32), "batch_size": pick(128, 4), "max_steps": STEPS, "save_every_steps": STEPS // 2,
        "eval_every_steps": 0, "eval_examples": 0, **changes,
    }  # fmt: skip


def pretrained(corpus: Path, out: Path, dropout: float, **changes: Any) -> list[Losses]:
    """Pretrain; return step, loss and norm of the gradient of each step."""
    pretrain(PretrainSettings(**values_of(corpus, out, dropout, **changes)))
    return losses(out)


def test_both_forms_of_attention_and_compiled_layers_learn_alike(corpus: Path, tmp_path: Path) -> None:
    runs = {name: pretrained(corpus, tmp_path / name, dropout) for name, dropout in DROPOUT.items()}
    if ON_GPU:
        runs["compiled"] = pretrained(corpus, tmp_path / "compiled", 0.0, compile=True)
    for name, found in runs.items():
        print(name, "first and last loss", found[0][1], found[-1][1])
        assert [loss for _, loss, _ in found] == pytest.approx(
            [loss for _, loss, _ in runs["varlen"]], rel=0.02
        )


def test_a_classifier_is_fine_tuned(tmp_path: Path) -> None:
    shape = pick({}, {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2})
    settings = FinetuneSettings(
        task="classification", base=f"random:{write_shape(tmp_path / 'base', shape)}", device=DEVICE,
        train=[DataFile(path=write_texts(tmp_path / "train.tsv", pick(2000, 40)))],
        dev=[DataFile(path=write_texts(tmp_path / "dev.tsv", 40))],
        output_dir=tmp_path / "run", batch_size=pick(64, 8), max_tokens=64, epochs=1,
    )  # fmt: skip
    assert (finetune(settings) / "model.safetensors").is_file()


def test_a_run_resumed_in_a_new_process_is_the_unbroken_one(corpus: Path, tmp_path: Path) -> None:
    """With dropout, so that what a GPU draws is resumed too."""
    dropout, whole, resumed = 0.1, tmp_path / "whole", tmp_path / "resumed"
    first = pretrained(corpus, whole, dropout)
    middle = checkpoints(whole)[0]
    shutil.copytree(middle, resumed / "checkpoints" / middle.name)
    settings = tmp_path / "resumed.yaml"
    settings.write_text(json.dumps(values_of(corpus, resumed, dropout)), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "training.commands.pretrain", "--config", str(settings)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rest, second = first[STEPS // 2 :], losses(resumed)
    weights = [(out / "model/model.safetensors").read_bytes() for out in (whole, resumed)]
    is_exact = rest == second and weights[0] == weights[1]
    assert [step for step, *_ in second] == [step for step, *_ in rest]
    print("the resumed run is the same to the bit:", is_exact, "losses apart:", apart(rest, second))
    if not is_exact:  # then the kernels of this GPU are not deterministic, and no resumed run can be nearer
        again = pretrained(corpus, tmp_path / "again", dropout)
        print("losses of a run made again apart:", apart(first, again))
        assert ON_GPU and again != first
    assert apart(rest, second) < 0.01


def apart(first: Sequence[Losses], second: Sequence[Losses]) -> float:
    """Return the largest difference of a step's losses."""
    return max(abs(one - two) for (_, one, _), (_, two, _) in zip(first, second, strict=True))
