"""Sparse vectors: runs that learn them, the FLOPS regulariser, and the loss of sentence-transformers."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert.checkpoint.weights import read_checkpoint
from bert.data.examples import TextExample
from bert.errors import CheckpointError, ConfigError
from bert.nn.losses import flops
from bert.tasks.spec import TaskSpec
from tests.support.topics import TOPICS, run_on_topics
from training.finetuning.model import of_checkpoint
from training.settings import FinetuneSettings
from training.tasks.base import collate
from training.tasks.sparse import SparseFinetuning

PYTHON = os.environ.get("BERT_SENTENCE_TRANSFORMERS_PYTHON", "")
PROGRAM = Path(__file__).parents[2] / "support/sparse_loss.py"


def test_a_run_learns_to_search_and_a_stronger_regulariser_leaves_fewer_weights(
    tiny_base: Path, tmp_path: Path
) -> None:
    found = {}
    for strength in (0.0, 1.0):
        embeddings = {"query_flops": strength, "document_flops": strength}
        best = run_on_topics(
            Path(f"random:{tiny_base}"),
            tmp_path,
            task="sparse",
            embeddings=embeddings,
            output_dir=tmp_path / str(strength),
        )
        found[strength] = TaskSpec.read(best).scores["dev"]
    assert found[0.0]["triplet_accuracy"] > 0.9
    assert found[1.0]["active_dims"] < found[0.0]["active_dims"]


def test_what_a_run_writes_is_read_with_and_without_its_description(tiny_base: Path, tmp_path: Path) -> None:
    best = run_on_topics(Path(f"random:{tiny_base}"), tmp_path, task="sparse", epochs=1)
    ours = read_checkpoint(best)
    (best / "task.json").unlink()
    theirs = read_checkpoint(best)
    assert (ours.spec.task, theirs.spec.task) == ("sparse", "sparse")
    assert theirs.spec.max_tokens == ours.spec.max_tokens == 16
    assert theirs.weights.keys() == ours.weights.keys()


def test_flops_are_the_sum_of_squared_means() -> None:
    assert flops(torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]])).item() == 4.0 + 1.0


def test_the_regulariser_rises_in_the_first_third_of_a_run(tiny_base: Path, tmp_path: Path) -> None:
    _, task = of_checkpoint(
        read_checkpoint(run_on_topics(Path(f"random:{tiny_base}"), tmp_path, task="sparse", epochs=1))
    )
    assert isinstance(task, SparseFinetuning)
    settings = FinetuneSettings(
        task="sparse", output_dir=tmp_path, embeddings={"query_flops": 1, "document_flops": 0}
    )
    task.configure(settings, {}, 100)
    task.loss_name = "mnrl"
    weights = torch.rand(4, 50, requires_grad=True)
    batch = collate(
        task.features([TextExample("a", "b", None, "1"), TextExample("c", "d", None, "2")]),
        0,
        torch.device("cpu"),
    )
    totals = []
    for task.progress in (0.0, 1 / 6, 1 / 3, 1.0):
        totals.append(task.loss(weights, batch).total.item())
    strength = 2 * flops(weights[::2]).item()
    task.progress = 0.0
    totals.append(task.loss(weights.detach(), batch).total.item())
    assert [each - totals[0] for each in totals] == pytest.approx(
        [0, strength / 4, strength, strength, strength], rel=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": {"loss": "triplet"}}, "loss is 'triplet', and sparse vectors are learned by mnrl"),
        ({"embeddings": {"dimensions": [8]}}, "dimensions are for dense vectors"),
        ({"lora": {"rank": 2}}, "lora is not for sparse"),
    ],
)
def test_settings_of_other_vectors_are_refused(
    changes: dict[str, Any], message: str, tiny_base: Path, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        run_on_topics(tiny_base, tmp_path, task="sparse", **changes)


def test_a_base_without_the_masked_language_models_head_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    best = run_on_topics(tiny_base, tmp_path, task="similarity", epochs=1, output_dir=tmp_path / "dense")
    with pytest.raises(CheckpointError, match=r"lacks .*: sparse vectors begin with a masked language model"):
        run_on_topics(best, tmp_path, task="sparse")


@pytest.mark.skipif(not PYTHON, reason="BERT_SENTENCE_TRANSFORMERS_PYTHON names no Python that has it")
def test_loss_and_gradients_are_those_of_sentence_transformers(tiny_base: Path, tmp_path: Path) -> None:
    """Of a folder that a run wrote, which sentence-transformers loads."""
    best = run_on_topics(Path(f"random:{tiny_base}"), tmp_path, task="sparse", epochs=1)
    # No text twice: ours leaves out false negatives.
    rows = [[f"{a} {b}", f"{b} {c}", f"{c} {a} {a}"] for a, b, c in map(str.split, TOPICS)]
    asked = json.dumps({"rows": rows, "query": 0.5, "document": 0.25})
    done = subprocess.run(
        [PYTHON, "-P", str(PROGRAM), str(best), str(tmp_path / "theirs")],
        input=asked,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    theirs = load_file(tmp_path / "theirs")
    checkpoint = read_checkpoint(best)
    model, task = of_checkpoint(replace(checkpoint))
    settings = FinetuneSettings(
        task="sparse", output_dir=tmp_path, embeddings={"query_flops": 0.5, "document_flops": 0.25}
    )
    task.configure(settings, {}, 100)
    task.prepare([])
    task.loss_name = "mnrl"  # type: ignore[attr-defined]
    examples = [TextExample(a, p, None, str(n), (w,)) for n, (a, p, w) in enumerate(rows)]
    batch = collate(task.features(examples), task.tokenizer.pad_id, torch.device("cpu"))
    loss = task.loss(task.logits(model, batch).float(), batch)
    loss.mean.backward()
    assert loss.mean.item() == pytest.approx(theirs.pop("loss").item(), rel=1e-5)
    for name, gradient in theirs.items():
        largest = gradient.abs().max().item()
        torch.testing.assert_close(
            model.get_parameter(name).grad, gradient, atol=max(1e-5 * largest, 1e-6), rtol=1e-5
        )
