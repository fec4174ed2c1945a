"""The task of a checkpoint of the hub: told by its files, its tensors or the user."""

import json
from pathlib import Path

import pytest

from bert.bundle import read_bundle
from bert.errors import CheckpointError
from model_export.cli import main
from tests.support.checkpoints import SPECS, write_checkpoint
from tests.support.published import (
    CLS,
    as_published,
    classifier,
    read,
    write_embedder,
)


def test_task_json_and_modules_json_have_to_agree(tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=CLS)
    SPECS["similarity"].write(tmp_path)
    with pytest.raises(CheckpointError, match=r"task\.json has pooling 'mean', and .*modules\.json 'cls'"):
        read(tmp_path)
    SPECS["cls"].write(tmp_path)
    assert read(tmp_path).spec == SPECS["cls"]


def test_an_encoder_that_says_nothing_of_pooling(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["similarity"])
    as_published(tmp_path)
    found = read(tmp_path)
    assert found.spec.pooling == "mean" and "--pooling cls takes [CLS]" in found.remarks[0]
    assert read(tmp_path, pooling="cls").spec.pooling == "cls"
    assert read(tmp_path, pooling="mean").remarks == ()
    assert read(tmp_path, pooling="max+mean").spec.pooling == "max+mean"
    with pytest.raises(CheckpointError, match="pooling is 'first'; known are cls, max"):
        read(tmp_path, pooling="first")
    with pytest.raises(CheckpointError, match="pair is said of classification, and the task is similarity"):
        read(tmp_path, pair=True)
    with pytest.raises(
        CheckpointError, match="labels is said of classification and ner, and the task is simi"
    ):
        read(tmp_path, labels=("a", "b"))


def without_class(folder: Path, name: str | None = None) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = [name] if name else None
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_embeddings_are_found_by_modules_whatever_the_class(tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=CLS)
    without_class(tmp_path, "BertForMaskedLM")
    found = read(tmp_path)
    assert (found.spec.task, found.spec.pooling) == ("similarity", "cls")
    assert found.remarks == (
        "architectures is 'BertForMaskedLM', and modules.json makes embeddings: these are taken",
    )
    (tmp_path / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tensor 'cls.predictions.*say --pooling mean, or another"):
        read(tmp_path)
    assert read(tmp_path, pooling="cls").spec.pooling == "cls"


@pytest.mark.parametrize("task", ["classification", "ner", "qa", "fill_mask", "similarity"])
def test_without_a_class_the_tensors_tell_the_task(task: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS[task])
    (tmp_path / "task.json").unlink()
    without_class(tmp_path)
    found = read(tmp_path)
    assert found.spec.task == task
    assert f"by its tensors it is taken for {task}" in found.remarks[0]


def test_tensors_that_do_not_tell_the_task_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one", SPECS["multiple_choice"])
    (tmp_path / "one" / "task.json").unlink()
    without_class(tmp_path / "one")
    with pytest.raises(
        CheckpointError, match="a head of one number may be a classifier's or that of multiple"
    ):
        read(tmp_path / "one")
    write_checkpoint(tmp_path / "own", SPECS["classification"])
    (tmp_path / "own" / "task.json").unlink()
    without_class(tmp_path / "own", "BertForMoods")
    with pytest.raises(
        CheckpointError, match=r"architectures is 'BertForMoods', which is not known, and .*'classifier'"
    ):
        read(tmp_path / "own")
    assert read(tmp_path / "own", pooling="mean").spec.task == "similarity"


def test_what_the_user_says_overrules_the_files(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["no", "yes"])
    SPECS["pair"].write(folder)
    found = read(folder, pair=False, labels=("nein", "ja"), max_tokens=64)
    assert (found.spec.pair, found.spec.labels, found.spec.max_tokens) == (False, ("nein", "ja"), 64)
    assert found.remarks == (
        "pair is True by the checkpoint's own files; False is taken, as was asked",
        "labels is ('no', 'yes') by the checkpoint's own files; ('nein', 'ja') is taken, as was asked",
        "max_tokens is 128 by the checkpoint's own files; 64 is taken, as was asked",
    )
    with pytest.raises(CheckpointError, match="3 labels were given, and the model has 2"):
        read(folder, labels=("a", "b", "c"))
    with pytest.raises(
        CheckpointError, match=r"max_tokens \(129\) must be at most the model's positions \(128\)"
    ):
        read(folder, max_tokens=129)
    with pytest.raises(
        CheckpointError, match="pooling is said of similarity, and the task is classification"
    ):
        read(folder, pooling="cls")
    (folder / "task.json").unlink()
    found = read(folder, labels=("nein", "ja"))
    assert found.spec.labels == ("nein", "ja") and "nein, ja are taken, as was asked" in found.remarks[0]
    with pytest.raises(CheckpointError, match="3 labels were given, and the head has 2 outputs"):
        read(folder, labels=("a", "b", "c"))


def test_the_command_overrules_by_its_flags(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("eins, zwei\ndrei\n", encoding="utf-8")
    folder = classifier(tmp_path / "m", ["a", "b"])
    arguments = ["--checkpoint", str(folder), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    flags = ["--pair", "--max-tokens", "96", "--labels"]
    assert main([*arguments, *flags, str(tmp_path / "labels.txt")]) == 0
    spec = read_bundle(tmp_path / "b").manifest.task
    assert (spec.pair, spec.max_tokens, spec.labels) == (True, 96, ("eins, zwei", "drei"))
    assert main([*arguments, "--overwrite", "--labels", "x, y"]) == 0
    assert read_bundle(tmp_path / "b").manifest.task.labels == ("x", "y")
    embedder = tmp_path / "e"
    write_embedder(embedder)
    arguments = ["--checkpoint", str(embedder), "--out", str(tmp_path / "c"), "--precision", "fp32"]
    assert main([*arguments, "--pooling", "cls"]) == 0
    assert read_bundle(tmp_path / "c").manifest.task.pooling == "cls"


@pytest.mark.parametrize(("name", "task"), [("best", "classification"), ("model", "fill_mask")])
def test_the_checkpoint_of_a_run_is_found(
    name: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    write_checkpoint(run / name, SPECS[task])
    (run / "checkpoints").mkdir()
    assert main(["--checkpoint", str(run), "--out", str(tmp_path / "b"), "--precision", "fp32"]) == 0
    assert f"{run} is the folder of a run; {run / name} is exported" in capsys.readouterr().err


def test_what_a_run_resumes_from_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = tmp_path / "run" / "checkpoints" / "step-00000004"
    save.mkdir(parents=True)
    (save / "checkpoint.json").write_text("{}")
    for folder in (tmp_path / "run", save):
        assert main(["--checkpoint", str(folder), "--out", str(tmp_path / "b")]) == 1
        assert f"the run of {tmp_path / 'run'} has written no checkpoint yet" in capsys.readouterr().err
    (tmp_path / "run" / "model").mkdir()
    assert main(["--checkpoint", str(save), "--out", str(tmp_path / "b")]) == 1
    said = f"{save} is what a run resumes from, and no checkpoint: give {tmp_path / 'run' / 'model'}"
    assert said in capsys.readouterr().err
