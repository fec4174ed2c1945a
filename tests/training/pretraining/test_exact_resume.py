"""Killed at any moment and started again, a run has the losses that it would have had."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import read_bundle
from model_export.cli import main as export
from tests.support.kills import Runs, forking
from training.engine.records import read_lines

TWO_PHASES = [{"max_tokens": 32, "share": 0.5}, {"max_tokens": 48, "share": 0.5}]

DEBERTA_V3 = {
    "objective": "replaced_token",
    "examples": "chunks",
    "model": {
        "model_type": "deberta-v2", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 64, "position_buckets": 16,
    },
    "replaced_token": {
        "generator_width": 1.0, "generator_depth": 0.5, "embedding_sharing": "gradient_disentangled",
    },
}  # fmt: skip
"""A run that draws pieces from its generator beside dropout."""


@dataclass(frozen=True)
class OfCorpus:
    """Runs of one corpus."""

    corpus: Path
    runs: Runs

    def train(self, out: Path, processes: int, kills: int, **changes: Any) -> dict[str, Any]:
        """Train to the end, killed so often."""
        return self.runs.train(out, processes, kills, self.corpus, **changes)


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfCorpus]:
    with forking(tmp_path_factory.mktemp("runs") / "errors") as runs:
        yield OfCorpus(corpus, runs)


def losses(out: Path) -> list[tuple[int, float, float]]:
    lines = [line for line in read_lines(out / "log.jsonl") if "loss" in line]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def held_out(out: Path) -> dict[str, float]:
    scores: dict[str, float] = [
        line["held_out"] for line in read_lines(out / "log.jsonl") if "held_out" in line
    ][-1]
    del scores["perplexity"]  # exp of the loss
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "steps"), [(2, 60), pytest.param(20, 300, marks=pytest.mark.soak)])
def test_kills_at_random_times_change_no_bit(runs: OfCorpus, tmp_path: Path, kills: int, steps: int) -> None:
    runs.train(tmp_path / "calm", 1, 0, max_steps=steps, phases=TWO_PHASES)
    result = runs.train(tmp_path / "killed", 1, kills, max_steps=steps, phases=TWO_PHASES)
    assert result["killed"] == kills
    assert losses(tmp_path / "killed") == losses(tmp_path / "calm")
    weights = [(tmp_path / run / "model/model.safetensors").read_bytes() for run in ("calm", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drawn", "kills", "steps"),
    [
        (DEBERTA_V3, 1, 15),
        pytest.param({}, 1, 15, marks=pytest.mark.soak),
        pytest.param(DEBERTA_V3, 3, 60, marks=pytest.mark.soak),
        ({"sharding": "full", "save_every_steps": 1}, 2, 30),
        pytest.param(
            {"sharding": "full", "save_every_steps": 1, "optimizer": "lamb"}, 10, 120, marks=pytest.mark.soak
        ),
    ],
    ids=["deberta_v3", "bert", "deberta_v3, often", "in parts", "in parts, often"],
)
def test_two_killed_processes_change_no_bit_either(
    runs: OfCorpus, tmp_path: Path, drawn: dict[str, Any], kills: int, steps: int
) -> None:
    runs.train(tmp_path / "calm", 2, 0, max_steps=steps, **drawn)
    assert runs.train(tmp_path / "killed", 2, kills, max_steps=steps, **drawn)["killed"] == kills
    assert losses(tmp_path / "killed") == losses(tmp_path / "calm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharding", "changes"),
    [
        pytest.param("none", {}, marks=pytest.mark.soak),
        pytest.param("full", {}, marks=pytest.mark.soak),
        ("full", {"optimizer": "lamb"}),
        # Its optimiser is StableAdamW; the texts of 48 tokens pass the window of its layers.
        ("full", {"recipe": "modernbert", "objective": "mlm"}),
    ],
    ids=["ddp", "fsdp", "lamb", "modernbert"],
)
def test_two_processes_have_the_losses_of_one(
    runs: OfCorpus, tmp_path: Path, sharding: str, changes: dict[str, Any]
) -> None:
    model = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        **({"local_attention": 8} if "recipe" in changes else {}),
    }
    still = {
        "model": {**model, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "microbatch_size": 3,
        "max_steps": 10,
        "eval_examples": 600,  # several batches of held-out text, which the processes share
        **changes,
    }
    runs.train(tmp_path / "one", 1, 0, **still)
    runs.train(tmp_path / "two", 2, 0, **still, sharding=sharding)
    for one, two in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    assert held_out(tmp_path / "two") == pytest.approx(held_out(tmp_path / "one"), abs=1e-5)


@pytest.mark.slow
def test_a_run_in_parts_goes_on_with_another_number_of_processes(runs: OfCorpus, tmp_path: Path) -> None:
    """Rounding differs, and the draws of dropout, of which there are none here: nothing else does."""
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    steady = {
        "model": {**shape, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "schedule": "constant",
        "sharding": "full",
        "batch_size": 12,
    }
    runs.train(tmp_path / "one", 1, 0, **steady, max_steps=16)
    for processes, steps in ((2, 4), (3, 8), (1, 12), (2, 16)):
        runs.train(tmp_path / "many", processes, 0, **steady, max_steps=steps)
    for one, many in zip(losses(tmp_path / "one"), losses(tmp_path / "many"), strict=True):
        assert many == pytest.approx(one, abs=1e-5)
    asked = ["--checkpoint", str(tmp_path / "many"), "--out", str(tmp_path / "bundle"), "--precision", "fp32"]
    assert export(asked) == 0
    assert read_bundle(tmp_path / "bundle").manifest.task.task == "fill_mask"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"recipe": "modernbert", "objective": "mlm"}, marks=pytest.mark.soak)],
    ids=["bert", "modernbert"],
)
def test_a_model_in_parts_learns_in_bf16_as_a_whole_one_does(
    runs: OfCorpus, tmp_path: Path, changes: dict[str, Any]
) -> None:
    for sharding in ("none", "full"):
        runs.train(tmp_path / sharding, 2, 0, max_steps=20, precision="bf16", sharding=sharding, **changes)
    for whole, sharded in zip(losses(tmp_path / "none"), losses(tmp_path / "full"), strict=True):
        assert whole[1] == pytest.approx(sharded[1], abs=0.02)


@pytest.mark.slow
@pytest.mark.soak
def test_a_sharded_model_with_offsets_has_the_losses_of_a_whole_one(runs: OfCorpus, tmp_path: Path) -> None:
    for sharding in ("none", "full"):
        runs.train(tmp_path / sharding, 2, 0, **DEBERTA_V3, max_steps=20, sharding=sharding)
    for whole, sharded in zip(losses(tmp_path / "none"), losses(tmp_path / "full"), strict=True):
        assert whole == pytest.approx(sharded, abs=1e-5)
