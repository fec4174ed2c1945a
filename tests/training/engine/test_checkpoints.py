"""Checkpoints of a run: whole or not at all."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert.errors import ConfigError, TrainingError
from training.engine.checkpoints import CheckpointStore, damage_of, require_writable, unwritten_because
from training.finetune import finetune
from training.pretrain import pretrain
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings


def text(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "state.txt").write_text(content)

    return write


def saved(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.save(step, text(f"step {step}"))


def test_the_newest_is_found_and_old_ones_go(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.newest() is None
    saved(store, 5, 10, 15)
    newest = store.newest()
    assert (
        newest is not None
        and (newest / "state.txt").read_text() == "step 15"
        and newest.name == "step-00000015"
    )
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000010", "step-00000015"]


@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "no manifest", "empty folder"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, 1, 2)
    newest = tmp_path / "step-00000002"
    if damage == "flip":
        (newest / "state.txt").write_text("step 3")
    elif damage == "cut":
        (newest / "state.txt").write_text("step")
    elif damage == "lost":
        (newest / "state.txt").unlink()
    else:
        for file in newest.iterdir():
            if damage == "empty folder" or file.name == "checkpoint.json":
                file.unlink()
    with caplog.at_level(logging.WARNING):
        found = store.newest()
    assert found is not None and found.name == "step-00000001"
    assert "step-00000002 is passed over" in caplog.text


def test_a_failed_write_leaves_the_checkpoint_before_and_nothing_else(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, 1)

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError, match=r"No space left.*last good checkpoint is .*step-00000001"):
        store.save(2, fails)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert damage_of(tmp_path / "step-00000001") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_takes_no_more_is_said_whoever_tells_of_it(number: int) -> None:
    reason = os.strerror(number)
    assert unwritten_because(OSError(number, reason)) == reason
    told = f"Error while serializing: I/O error: {reason} (os error {number})"  # safetensors
    assert unwritten_because(RuntimeError(told)) == reason
    assert unwritten_because(RuntimeError("something else")) is None


def test_what_a_kill_left_half_written_is_not_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, 1)
    half = tmp_path / ".step-00000002.partial-12345678"
    half.mkdir()
    (half / "state.txt").write_text("ste")
    newest = store.newest()
    assert newest is not None and newest.name == "step-00000001"
    saved(store, 3)
    assert not half.exists()


def test_the_same_step_can_be_written_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved(store, 1)
    store.save(1, text("anew"))
    newest = store.newest()
    assert newest is not None and (newest / "state.txt").read_text() == "anew"


FULL_DISK = """
import sys
from collections.abc import Callable
from pathlib import Path
import torch
from safetensors.torch import save_file
from bert.errors import TrainingError
from training.engine.checkpoints import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
store.save(1, lambda folder: save_file({"w": torch.zeros(1000)}, folder / "state.safetensors"))
try:
    store.save(2, lambda folder: save_file({"w": torch.zeros(10_000_000)}, folder / "state.safetensors"))
except TrainingError as error:
    print(error)
print(store.newest().name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_said_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let a test mount a small disk")
    try:
        command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "checkpoints")]
        run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert "No space left on device" in run.stdout and "last good checkpoint" in run.stdout, run.stderr
    assert run.stdout.splitlines()[-1] == "step-00000001"


def test_an_output_dir_that_is_no_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("")
    for out in (file, file / "run"):
        said = rf"output_dir \({out}\) must be a folder, and {file} is none"
        with pytest.raises(ConfigError, match=said):
            pretrain(PretrainSettings(corpus=tmp_path / "none", output_dir=out, recipe="bert", max_steps=1))
        with pytest.raises(ConfigError, match=said):
            finetune(
                FinetuneSettings(task="ner", train=[{"path": "none"}], dev=[{"path": "none"}], output_dir=out)
            )
    require_writable(tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
