"""Checkpoints in parts, of a model that a process shares with nobody: what two share is tested by whole runs."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW, Optimizer

from bert.errors import TrainingError
from training.engine.checkpoints import CheckpointStore, damage_of
from training.engine.distributed import Processes
from training.engine.sharded import ShardedSaver
from training.engine.state import RunState, describe, parts_of_state, read_state

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(steps: int = 1, *, sharded: bool = True) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(steps)
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    if sharded:
        fully_shard(model)
    optimizer = AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def values(model: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    parts: dict[str, Any] = parts_of_state(model, optimizer)
    return {
        name: (part.full_tensor() if hasattr(part, "full_tensor") else part).clone()
        for name, part in parts.items()
    }


def save(saver: ShardedSaver, step: int, model: nn.Module, optimizer: Optimizer) -> None:
    saver.start(step, parts_of_state(model, optimizer), describe(RunState(step=step), {"seed": 1}))


@pytest.mark.parametrize("sharded", [True, False], ids=["in parts", "whole"])
def test_what_was_saved_is_read_by_a_model_in_parts_and_by_a_whole_one(tmp_path: Path, sharded: bool) -> None:
    store, (model, optimizer) = CheckpointStore(tmp_path / "saves"), trained(3)
    with ShardedSaver(store, ALONE) as saver:
        save(saver, 3, model, optimizer)
        saver.finish()
    newest = store.newest()
    assert newest is not None
    again, its_optimizer = trained(1, sharded=sharded)
    assert read_state(newest, again, its_optimizer, {"seed": 1}).step == 3
    expected, found = values(model, optimizer), values(again, its_optimizer)
    assert found.keys() == expected.keys() and len(found) == 4 * 4
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(TrainingError, match=r"other settings \(seed\)"):
        read_state(newest, again, its_optimizer, {"seed": 2})


def test_training_goes_on_while_a_checkpoint_is_written_and_it_counts_once_it_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (model, optimizer) = CheckpointStore(tmp_path / "saves"), trained()
    go_on, seal = threading.Event(), store.save

    def late(step: int, write: Callable[[Path], None]) -> Path:
        assert go_on.wait(120)
        return seal(step, write)

    with ShardedSaver(store, ALONE) as saver:
        save(saver, 1, model, optimizer)
        saver.finish()
        monkeypatch.setattr(store, "save", late)
        before = values(model, optimizer)
        save(saver, 2, model, optimizer)
        with torch.no_grad():
            for part in parts_of_state(model, optimizer).values():
                part.add_(1.0)
        assert [path.name for path in store.newest_first()] == ["step-00000001"]
        go_on.set()
        saver.finish()
    newest = store.newest()
    assert newest is not None and newest.name == "step-00000002"
    read_state(newest, model, optimizer, {"seed": 1})
    found = values(model, optimizer)
    assert all(torch.equal(found[name], before[name]) for name in before)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_full_disk_in_any_process_is_said_and_the_checkpoint_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (model, optimizer) = CheckpointStore(tmp_path / "saves"), trained()
    with ShardedSaver(store, ALONE) as saver:
        save(saver, 1, model, optimizer)
        saver.finish()

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(HuggingFaceStorageWriter, "write_data", full)
            save(saver, 2, model, optimizer)
            with pytest.raises(
                TrainingError, match=r"No space left.*last good checkpoint is .*step-00000001"
            ):
                saver.finish()
        assert damage_of(store.folder / "step-00000001") is None
        save(saver, 2, model, optimizer)  # once there is room
    newest = store.newest()
    assert newest is not None and newest.name == "step-00000002"
