"""Fine-tuning by two processes: the weights of one, and after a kill the weights of a run that nothing befell."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert.tasks.spec import TaskSpec
from tests.support.finetuning import SAMPLES
from tests.support.kills import Runs, forking
from tests.support.nodes import end_well, kill_node, meeting_at, namespaces
from training.engine.records import read_steps

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
STEADY = {"dropout": 0.0, "attention_dropout": 0.0}
"""Each process draws its own dropout."""


def start(base: Path, out: Path, world: int, **changes: Any) -> subprocess.Popen[str]:
    """Start a run as `torchrun -m training.commands.finetune`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, *program(base, out, **changes)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def settings_of(base: Path, **changes: Any) -> dict[str, Any]:
    """Return settings; 36 sentences in batches of 7 leave a last one of 1, which has nothing for the second process."""
    return {
        "task": "ner", "base": str(base), "max_tokens": 48, "learning_rate": 1e-3,
        "train": [str(SAMPLES / "ner-train.conll")], "dev": [str(SAMPLES / "ner-dev.conll")],
        "batch_size": 7, "epochs": 3, "threads": 1, "device": "cpu", **changes,
    }  # fmt: skip


def program(base: Path, out: Path, **changes: Any) -> list[str]:
    """Write the settings; return what torchrun starts."""
    file = out.with_suffix(".yaml")
    settings = {"output_dir": str(out), **settings_of(base, **changes)}
    file.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    return ["-m", "tests.support.undrawn", "training.commands.finetune", "--config", str(file)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Processes without torchrun, which import torch once for all."""
    with forking(tmp_path_factory.mktemp("runs") / "errors") as runs:
        yield runs


def finished(run: subprocess.Popen[str]) -> str:
    """Wait for the end; return what was printed."""
    _, printed = run.communicate(timeout=600)
    assert run.returncode == 0, printed
    return printed


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "best" / "model.safetensors")


def losses(out: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["grad_norm"]) for line in read_steps(out / "log.jsonl")]


@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.soak), {"accumulation_steps": 2}],
    ids=["whole", "in parts"],
)
def test_two_processes_have_the_weights_and_scores_of_one(
    tiny_base: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    finished(start(tiny_base, one, 1, **STEADY, **changes))
    printed = finished(start(tiny_base, two, 2, **STEADY, **changes))
    assert printed.count("train ner-train:") == printed.count("checkpoint:") == 1  # one of them speaks
    assert printed.count("bert-export --checkpoint") == 1
    for (step, *mine), (number, *theirs) in zip(losses(two), losses(one), strict=True):
        assert step == number and mine == pytest.approx(theirs, abs=1e-5)
    expected = weights(one)
    for name, weight in weights(two).items():
        torch.testing.assert_close(weight, expected[name], atol=2e-5, rtol=0)
    assert TaskSpec.read(two / "best").scores == TaskSpec.read(one / "best").scores


def test_two_processes_compare_the_whole_batch_as_one_does(
    tiny_base: Path, tmp_path: Path, runs: Runs
) -> None:
    """Five pairs in batches of four leave a last one of 1, which has nothing for the second process."""
    words = ["apple pear", "car bus", "rain snow", "red green", "king queen"]
    rows = [f"{text},{text.split()[0]},{words[n - 1].split()[1]}" for n, text in enumerate(words)]
    (tmp_path / "train.csv").write_text("anchor,positive,negative\n" + "\n".join(rows), encoding="utf-8")
    data = [{"path": str(tmp_path / "train.csv")}]
    changes = {
        "task": "similarity", "train": data, "dev": data, "batch_size": 4, "max_tokens": 16, "epochs": 2, **STEADY,
        "embeddings": {"loss": "mnrl", "whole_batch": True, "symmetric": True},
    }  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    runs.train(two, 2, **settings_of(tiny_base, accumulation_steps=2, **changes))
    runs.train(one, 1, **settings_of(tiny_base, **changes))
    for (step, *mine), (number, *theirs) in zip(losses(two), losses(one), strict=True):
        assert step == number and mine == pytest.approx(theirs, rel=1e-4)
    for name, weight in weights(two).items():
        torch.testing.assert_close(weight, weights(one)[name], atol=2e-5, rtol=0)


def test_a_model_in_parts_learns_as_a_whole_one_does(tiny_base: Path, tmp_path: Path, runs: Runs) -> None:
    """Shares of 4 and 3 sentences in parts, read twice, with averages of the weights and some that stay."""
    changes = {"accumulation_steps": 3, "r_drop": 0.5, "dropout": 0.1, "ema": 0.5, "freeze_embeddings": True}
    whole, parts = tmp_path / "none", tmp_path / "full"
    for out in (whole, parts):
        runs.train(out, 2, **settings_of(tiny_base, sharding=out.name, **changes))
    for (step, *mine), (number, *theirs) in zip(losses(parts), losses(whole), strict=True):
        assert step == number and mine == pytest.approx(theirs, abs=1e-5)
    expected = weights(whole)
    assert weights(parts).keys() == expected.keys()
    for name, weight in weights(parts).items():
        torch.testing.assert_close(weight, expected[name], atol=2e-5, rtol=0)
    assert TaskSpec.read(parts / "best").scores == TaskSpec.read(whole / "best").scores
    assert list((parts / "checkpoints").rglob("shard-00002-model-*.safetensors"))


@pytest.mark.parametrize(
    "changes",
    [{"sharding": "full", "ema": 0.9}, pytest.param({}, marks=pytest.mark.soak)],
    ids=["in parts", "whole"],
)
def test_two_killed_processes_resume_to_the_same_bits(
    tiny_base: Path, tmp_path: Path, runs: Runs, changes: dict[str, Any]
) -> None:
    common = {"save_every_steps": 2, "dropout": 0.1, "attention_dropout": 0.1, "epochs": 6, **changes}
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    runs.train(calm, 2, **settings_of(tiny_base, **common))
    said = len(runs.errors.read_text(encoding="utf-8"))
    assert runs.train(killed, 2, kills=1, **settings_of(tiny_base, **common))["killed"] == 1
    assert "resuming from step" in runs.errors.read_text(encoding="utf-8")[said:]
    assert losses(killed) == losses(calm)
    expected = weights(calm)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(killed).items())


@pytest.mark.soak
def test_a_node_that_is_killed_and_started_again_changes_no_bit(tiny_base: Path, tmp_path: Path) -> None:
    common = {"save_every_steps": 2, "dropout": 0.1, "attention_dropout": 0.1, "epochs": 20}
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    finished(start(tiny_base, calm, 2, **common))
    command = program(tiny_base, killed, **common)
    with namespaces() as nodes:
        meeting = meeting_at(nodes[0])
        runs = [node.start(command, meeting, restarts=3) for node in nodes]
        while len(losses(killed)) < 9:
            assert runs[0].poll() is None, runs[0].communicate()[1]
            time.sleep(0.002)
        kill_node(runs[1])
        assert 9 <= len(losses(killed)) < len(losses(calm))
        runs[1] = nodes[1].start(command, meeting, restarts=3)
        assert "resuming from step" in end_well(runs)
    assert losses(killed) == losses(calm)
    expected = weights(calm)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(killed).items())
    assert TaskSpec.read(killed / "best").scores == TaskSpec.read(calm / "best").scores


def test_processes_that_would_get_one_pair_each_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    rows = "".join(f"question {n},answer {n}\n" for n in range(20))
    (tmp_path / "pairs.csv").write_text(f"anchor,positive\n{rows}", encoding="utf-8")
    data = {"train": [str(tmp_path / "pairs.csv")], "dev": []}
    run = start(tiny_base, tmp_path / "run", 2, task="similarity", batch_size=3, **data)
    _, printed = run.communicate(timeout=600)
    assert run.returncode != 0
    assert "must be at least 2: batch_size 3 (20 pairs an epoch), 2 processes" in printed
