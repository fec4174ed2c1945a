"""Starting from an earlier run: its very logits before the first step, or a refusal that says what does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from bert.checkpoint.weights import read_checkpoint
from bert.errors import CheckpointError, ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.engine.distributed import Processes
from training.finetune import finetune
from training.finetuning.scores import predict
from training.finetuning.trainer import FinetuneTrainer
from training.settings import FinetuneSettings
from training.tasks import task_class

Make = Callable[..., FinetuneSettings]
Floats = NDArray[np.float32]
LORA = {"rank": 4, "alpha": 8}
TEXTS = ["Angela Merkel met engineers in Munich.", "A dull film.", "Where was Marie Curie born?"]
FAST: dict[str, Any] = {"max_steps": 3, "learning_rate": 1e-2, "eval_limit": 4}


@pytest.fixture
def earlier(trained: Callable[..., Path]) -> Callable[..., Path]:
    """Return a maker of earlier runs' checkpoints."""
    return lambda task, **changes: trained(task, **FAST, **changes)


def reference(folder: Path, tokenizer: Tokenizer) -> list[Floats]:
    """What an exported checkpoint says of TEXTS: its weights merged and read without peft."""
    checkpoint = read_checkpoint(folder)
    task = task_class(checkpoint.spec.task)(tokenizer, checkpoint.spec)
    model = task.model(checkpoint.config)
    weights = {name: torch.tensor(weight) for name, weight in checkpoint.weights.items()}
    lacking, _ = model.load_state_dict(weights, strict=False)
    assert not lacking
    return predict(model.eval(), encodings(tokenizer), task, Processes(0, 1, torch.device("cpu")))


def encodings(tokenizer: Tokenizer) -> list[Any]:
    return [tokenizer.single(pieces) for pieces in tokenizer.pieces(TEXTS)]


@pytest.mark.parametrize("task", ["classification", "ner", "qa", "multiple_choice"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "adapter"])
def test_the_first_logits_are_the_last_of_the_earlier_run(
    task: str,
    lora: dict[str, int] | None,
    earlier: Callable[..., Path],
    begin: Callable[..., FinetuneTrainer],
) -> None:
    start = earlier(task, lora=lora)
    run = begin(task, start_from=start, lora=lora, seed=7)
    found = run.predict(encodings(run.task.tokenizer))
    for ours, theirs in zip(found, reference(start, run.task.tokenizer), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_without_it_the_first_logits_are_others(
    earlier: Callable[..., Path], begin: Callable[..., FinetuneTrainer]
) -> None:
    start = earlier("ner", lora=LORA)
    run = begin("ner", lora=LORA, seed=7)
    found, expected = run.predict(encodings(run.task.tokenizer)), reference(start, run.task.tokenizer)
    assert all(np.abs(ours - theirs).max() > 1e-2 for ours, theirs in zip(found, expected, strict=True))


def test_the_record_holds_the_commands_of_both_runs_and_of_those_that_went_on(
    earlier: Callable[..., Path], settings_for: Make
) -> None:
    start = earlier("ner", lora=LORA)
    first = TaskSpec.read(start).command
    assert first == "train --seed 42"
    again = {"start_from": start, "lora": LORA, **FAST}
    best = finetune(settings_for("ner", **again), "second --part 2")
    assert TaskSpec.read(best).command == f"{first}\nsecond --part 2"
    best = finetune(settings_for("ner", **{**again, "max_steps": 5}), "third")
    assert TaskSpec.read(best).command == f"{first}\nsecond --part 2\nthird"


def test_a_start_that_no_step_improves_stays_the_best(
    earlier: Callable[..., Path], settings_for: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    start = earlier("ner")
    worse = {**FAST, "learning_rate": 1.0, "eval_every_steps": 1}
    settings = settings_for("ner", start_from=start, **worse)
    best = finetune(settings)
    content = json.loads((settings.output_dir / "report/report.json").read_text(encoding="utf-8"))
    assert [evaluation["step"] for evaluation in content["evaluations"]] == [0, 1, 2, 3]
    assert content["best_step"] == 0
    for name, weight in load_file(start / "model.safetensors").items():
        assert torch.equal(weight, load_file(best / "model.safetensors")[name]), name
    assert "scoring the weights of step 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "first", "changes", "reason"),
    [
        (
            "classification",
            {},
            {"labels": ["positive", "negative"]},
            r"has labels \('negative', 'positive'\), and",
        ),
        ("ner", {"lora": LORA}, {"lora": {**LORA, "rank": 2}}, "has r 4, and this run 2"),
        ("ner", {"lora": LORA}, {"lora": {**LORA, "alpha": 9}}, "has lora_alpha 8.0, and this run 9.0"),
        ("ner", {"lora": LORA}, {}, "holds an adapter: set lora as that run did"),
        ("ner", {}, {"lora": LORA}, "holds no adapter, and lora is set: leave lora out"),
    ],
)
def test_what_does_not_fit_is_refused(
    task: str, first: dict[str, Any], changes: dict[str, Any], reason: str,
    earlier: Callable[..., Path], begin: Callable[..., FinetuneTrainer],
) -> None:  # fmt: skip
    with pytest.raises(ConfigError, match=reason):
        begin(task, start_from=earlier(task, **first), **changes)


def test_another_task_is_refused(earlier: Callable[..., Path], begin: Callable[..., FinetuneTrainer]) -> None:
    with pytest.raises(ConfigError, match="has task 'ner', and this run 'qa'"):
        begin("qa", start_from=earlier("ner", lora=LORA), lora=LORA)


def test_an_adapter_over_other_weights_is_refused(
    earlier: Callable[..., Path], begin: Callable[..., FinetuneTrainer], tiny_base: Path, tmp_path: Path
) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    shutil.copytree(tiny_base, same)
    assert begin("ner", start_from=earlier("ner", lora=LORA), lora=LORA, base=str(same))
    shutil.copytree(tiny_base, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, other / "model.safetensors")
    with pytest.raises(ConfigError, match=r"belongs to the base .* with other weights than .*other"):
        begin("ner", start_from=earlier("ner", lora=LORA), lora=LORA, base=str(other))


def test_a_folder_that_is_not_there_is_refused(begin: Callable[..., FinetuneTrainer], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*task\.json is missing"):
        begin("ner", start_from=tmp_path / "nowhere")


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40])


def renamed(name: str) -> Callable[[Path], object]:
    """Give one tensor of a file another name: peft, and a head that may be fresh, would pass over it."""

    def spoil(folder: Path) -> None:
        weights = load_file(folder / name)
        first = next(key for key in weights if "classifier" in key)
        save_file({f"{key}x" if key == first else key: w for key, w in weights.items()}, folder / name)

    return spoil


@pytest.mark.parametrize(
    ("lora", "spoil", "reason"),
    [
        (LORA, without("adapter_model.safetensors"), r"adapter_model\.safetensors cannot be read"),
        (LORA, cut("adapter_model.safetensors"), r"adapter_model\.safetensors cannot be read"),
        (LORA, cut("adapter_config.json"), r"adapter_config\.json is not JSON"),
        (LORA, renamed("adapter_model.safetensors"), r"is of another model: .*classifier.* do not fit"),
        (None, without("model.safetensors"), "model.safetensors"),
        (None, renamed("model.safetensors"), r"lacks classifier\.\w+: its head is not this task's"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    lora: dict[str, int] | None, spoil: Callable[[Path], object], reason: str,
    earlier: Callable[..., Path], begin: Callable[..., FinetuneTrainer], tmp_path: Path,
) -> None:  # fmt: skip
    folder = tmp_path / "damaged"
    shutil.copytree(earlier("ner", lora=lora), folder)
    spoil(folder)
    with pytest.raises(CheckpointError, match=reason):
        begin("ner", start_from=folder, lora=lora)


def test_a_start_without_training_files_is_refused(settings_for: Make, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="there are no training files"):
        settings_for("ner", start_from=tmp_path, train=[])
