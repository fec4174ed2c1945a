"""Runs from data to checkpoint, on samples and a tiny base."""

import hashlib
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.config import BertConfig
from bert.errors import CheckpointError, ConfigError, DataError, TrainingError
from bert.nn.checkpoint import load_into
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from model_export.cli import main as export
from model_export.verify.dev_score import recorded_files
from tests.support.finetuning import FILES, files
from training.commands.finetune import main
from training.finetune import finetune
from training.finetuning.batches import Dataset
from training.settings import FinetuneSettings
from training.tasks import task_class

Make = Callable[..., FinetuneSettings]
EMBEDDING_FILES = (
    "modules.json",
    "1_Pooling",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
"""What sentence-transformers reads beside the model."""


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("task", FILES)
def test_each_task_trains_and_leaves_a_checkpoint_and_a_report(task: str, settings_for: Make) -> None:
    settings = settings_for(task)
    best = finetune(settings, "the command")
    spec = TaskSpec.read(best)
    assert spec.task == task
    assert spec.command == "the command"
    assert recorded_files(spec, "dev") == [file.labelled for file in settings.dev]
    assert set(next(iter(spec.scores.values()))) <= set(task_class(task)(Tokenizer.load(best), spec).metrics)
    assert {path.name for path in best.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "task.json",
        *(EMBEDDING_FILES if task == "similarity" else ()),
    }
    assert (settings.output_dir / "report" / "report.md").is_file()
    assert (settings.output_dir / "report" / "curve.png").is_file()


def test_a_checkpoint_gives_the_same_logits_in_transformers(trained: Callable[..., Path]) -> None:
    best = trained("classification")
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(best).eval()
    spec, tokenizer = TaskSpec.read(best), Tokenizer.load(best)
    model = task_class("classification")(tokenizer, spec).model(BertConfig.read(best)).eval()
    assert load_into(model, best) == []
    ids = torch.tensor(
        tokenizer.single(tokenizer.pieces(["A warm and funny film."])[0]).ids[None].astype(np.int64)
    )
    with torch.no_grad():
        torch.testing.assert_close(model(ids), reference(ids).logits, atol=1e-5, rtol=0)
    assert reference.config.id2label == dict(enumerate(spec.labels))


# peft reads an attribute that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_an_adapter_loads_in_peft_over_transformers(trained: Callable[..., Path], tiny_base: Path) -> None:
    best = trained("ner", lora={"rank": 4})
    found = {path.name for path in best.iterdir()}
    assert found == {"adapter_config.json", "adapter_model.safetensors", "task.json"}
    spec = TaskSpec.read(best)
    theirs = transformers.BertForTokenClassification.from_pretrained(tiny_base, num_labels=len(spec.labels))
    tokenizer = Tokenizer.load(tiny_base)
    ours = task_class("ner")(tokenizer, spec).model(BertConfig.read(tiny_base))
    load_into(ours, tiny_base)
    ids = torch.tensor(
        tokenizer.single(tokenizer.pieces(["Ada lived in London."])[0]).ids[None].astype(np.int64)
    )
    with torch.no_grad():
        expected = peft.PeftModel.from_pretrained(theirs, str(best)).eval()(ids).logits
        found = peft.PeftModel.from_pretrained(ours, str(best)).eval()(ids)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    saved = load_file(best / "adapter_model.safetensors")
    assert any(float(value.abs().max()) > 0 for name, value in saved.items() if "lora_B" in name)


@pytest.mark.parametrize(
    "changes", [{"task": "ner", "lora": {"rank": 4}}, {"task": "similarity", "train": []}]
)
def test_what_belongs_to_a_folders_weights_is_exported_with_them_only(
    changes: dict[str, object], trained: Callable[..., Path], tiny_base: Path, tmp_path: Path
) -> None:
    best = trained(**changes)
    sha256 = hashlib.sha256((tiny_base / "model.safetensors").read_bytes()).hexdigest()
    assert TaskSpec.read(best).base == {"name": str(tiny_base), "sha256": sha256}
    assert export(["--checkpoint", str(best), "--out", str(tmp_path / "bundle")]) == 0
    manifest = read_bundle(tmp_path / "bundle").manifest
    assert manifest.source["base"]["files"]["model.safetensors"] == sha256
    other = tmp_path / "other"
    shutil.copytree(tiny_base, other)
    read_checkpoint(best, other)  # the same weights at another place
    weights = load_file(other / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, other / "model.safetensors")
    with pytest.raises(CheckpointError, match="these are other weights"):
        read_checkpoint(best, other)


def test_the_command_ends_with_the_commands_that_export_and_serve(
    settings_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for("similarity", output_dir=tmp_path / "my run")
    (tmp_path / "run.yaml").write_text(
        settings.model_dump_json(exclude={"config"}), encoding="utf-8"
    )  # JSON is YAML
    monkeypatch.setattr(sys, "argv", ["bert-finetune", "--config", str(tmp_path / "run.yaml")])
    monkeypatch.chdir(tmp_path)
    main()
    *_, said, first, second = capsys.readouterr().err.splitlines()
    assert said == "next:"
    assert shlex.split(second) == ["bert-serve", "--bundles", "my-bundles"]
    command, *arguments = shlex.split(first)
    assert command == "bert-export" and export([*arguments, "--precision", "fp32"]) == 0
    assert read_bundle(tmp_path / "my-bundles/my run").manifest.name == "my run"


def trained_weights(settings: FinetuneSettings) -> dict[str, torch.Tensor]:
    best = finetune(settings)
    return load_file(best / "model.safetensors")


def test_accumulated_parts_train_as_the_whole_batch_does(settings_for: Make, tmp_path: Path) -> None:
    # NER: the parts hold different numbers of targets, so a mean of means would show.
    whole = trained_weights(settings_for("ner", output_dir=tmp_path / "whole"))
    parts = trained_weights(settings_for("ner", output_dir=tmp_path / "parts", accumulation_steps=4))
    for name, weight in whole.items():
        torch.testing.assert_close(weight, parts[name], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 2e-3},
        {"batch_size": 4},
        {"seed": 1},
        {"train": files("classification", "dev")},
        # What decides which checkpoint is the best cannot change half-way.
        {"metric": "f1_macro"},
        {"dev": files("classification", "train")},
        {"eval_limit": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_run_with_other_settings_is_not_gone_on_with(
    changes: dict[str, object], trained: Callable[..., Path], settings_for: Make
) -> None:
    settings = settings_for("classification", output_dir=trained("classification").parent, **changes)
    with pytest.raises(TrainingError, match=rf"other settings \({next(iter(changes))}\)"):
        finetune(settings)


def test_a_finished_run_can_be_made_longer(settings_for: Make) -> None:
    finetune(settings_for("classification"))
    settings = settings_for("classification", epochs=2)
    finetune(settings)
    report = json.loads((settings.output_dir / "report" / "report.json").read_text())
    assert [evaluation["step"] for evaluation in report["evaluations"]] == [8, 16]


def test_early_stopping_ends_a_run_that_gets_no_better(settings_for: Make) -> None:
    settings = settings_for("classification", epochs=50, learning_rate=1e-12, patience=2)
    finetune(settings)
    report = json.loads((settings.output_dir / "report" / "report.json").read_text())
    assert len(report["evaluations"]) == 3


def test_bad_data_is_refused_with_its_line_before_training(settings_for: Make, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("text,label\nGood,positive\n,negative\n")
    with pytest.raises(DataError, match=r"bad\.csv:3"):
        finetune(settings_for("classification", train=[{"path": bad}]))
    assert not (tmp_path / "run").exists()


def test_a_format_of_another_task_is_refused(settings_for: Make) -> None:
    with pytest.raises(ConfigError, match="squad"):
        finetune(settings_for("ner", train=[{"path": "x.json", "format": "squad"}]))


def test_a_text_longer_than_the_models_positions_is_refused(settings_for: Make) -> None:
    with pytest.raises(ConfigError, match=r"max_tokens \(512\)"):
        finetune(settings_for("classification", max_tokens=512))


def test_similarity_without_training_data_scores_the_base(settings_for: Make) -> None:
    folder = finetune(settings_for("similarity", train=[]))
    assert [path.name for path in folder.iterdir()] == ["task.json"]
    assert "spearman" in next(iter(TaskSpec.read(folder).scores.values()))


def test_balanced_weights_have_a_mean_of_one_over_what_an_epoch_draws(
    settings_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label, count in (("a", 100), ("b", 10)):
        rows = "".join(f"text {number},{label}\n" for number in range(count))
        (tmp_path / f"{label}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    train = [{"path": tmp_path / "a.csv"}, {"path": tmp_path / "b.csv", "repeat": 5}]
    settings = settings_for("classification", train=train, dev=[], class_weights="balanced")
    made: list[Dataset] = []

    def stop(data: Dataset) -> None:
        made.append(data)
        raise TrainingError("the data is made")

    monkeypatch.setattr("training.finetune._recipe", lambda _, __, data: stop(data))
    with pytest.raises(TrainingError, match="the data is made"):
        finetune(settings)
    (data,) = made
    weights = [data.features[i].weight for batch in data.batches(settings, 0) for i in batch]
    assert len(weights) == 150
    assert np.mean(weights) == pytest.approx(1.0)
    assert (data.features[0].weight, data.features[-1].weight) == pytest.approx((0.75, 1.5))


def test_a_run_with_the_default_rate_and_epochs_beats_the_baseline(
    settings_for: Make, tmp_path: Path
) -> None:
    words = {"good": ["warm", "fresh", "bright", "kind"], "bad": ["cold", "stale", "dark", "rude"]}
    for part, count in (("train", 32), ("dev", 8)):
        rng = np.random.default_rng(count)
        rows = [f"{' '.join(rng.choice(words[label], 6))},{label}" for label in words for _ in range(count)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    parts = {part: [{"path": tmp_path / f"{part}.csv"}] for part in ("train", "dev")}
    settings = settings_for("classification", learning_rate=None, epochs=None, **parts)
    best = finetune(settings)
    report = json.loads((settings.output_dir / "report" / "report.json").read_text(encoding="utf-8"))
    (dev,) = report["dev"].values()
    assert "learning_rate 3e-4 (default" in report["recipe"] and "epochs 20 (default" in report["recipe"]
    assert dev["scores"]["accuracy"] > dev["baseline"]["scores"]["accuracy"]
    assert TaskSpec.read(best).scores["dev"]["accuracy"] == dev["scores"]["accuracy"]


def test_a_run_that_learns_nothing_warns_of_the_class_that_it_never_predicts(
    settings_for: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"text {number},{'b' if number % 8 == 0 else 'a'}\n" for number in range(24))
    for part in ("train", "dev"):
        (tmp_path / f"{part}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    settings = settings_for(
        "classification",
        train=[{"path": tmp_path / "train.csv"}],
        dev=[{"path": tmp_path / "dev.csv"}],
        learning_rate=1e-7,
    )
    finetune(settings)
    warning = "dev: the model never predicts"
    output = capsys.readouterr()
    assert f"warning: {warning}" in output.out + output.err
    report = settings.output_dir / "report"
    assert any(
        line.startswith(warning) for line in json.loads((report / "report.json").read_text())["warnings"]
    )
    assert warning in (report / "report.md").read_text(encoding="utf-8")


def test_a_base_scored_without_training_is_warned_of_like_a_run(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "training.finetuning.scores.result_warnings", lambda *_: ["dev: no better than the baseline"]
    )
    finetune(settings_for("similarity", train=[]))
    assert "warning: dev: no better than the baseline" in caplog.messages
