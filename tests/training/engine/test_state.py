"""Choice of the save that a run resumes from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from bert.errors import TrainingError
from training.data_file import DataFile
from training.engine.state import RunState, gather_state, read_state, write_state
from training.finetuning.trainer import fingerprint
from training.settings import FinetuneSettings


def settings(**changes: Any) -> FinetuneSettings:
    train = [DataFile(path=Path("a.csv"), repeat=2)]
    return FinetuneSettings(task="classification", output_dir=Path("x"), train=train, **changes)


class Saved:
    """A save of step 7, with what to compare it with."""

    def __init__(self, folder: Path, prints: dict[str, Any]) -> None:
        self.folder, self.model = folder, nn.Linear(2, 2)
        self.optimizer = AdamW(self.model.parameters())
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        write_state(folder, *gather_state(self.model, self.optimizer), RunState(step=7), prints)

    def read(self, **changes: Any) -> RunState:
        now = fingerprint(settings(**changes))
        return read_state(self.folder, self.model, self.optimizer, now)


def test_weights_moments_and_generators_come_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    saved = Saved(tmp_path, fingerprint(settings()))
    drawn = torch.rand(2)
    other = nn.Linear(2, 2)
    optimizer = AdamW(other.parameters())
    read_state(tmp_path, other, optimizer, fingerprint(settings()))
    assert torch.equal(torch.rand(2), drawn)
    for ours, theirs in zip(other.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key, value in saved.optimizer.state[theirs].items():
            assert torch.equal(optimizer.state[ours][key], value)


def test_a_save_of_other_settings_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path, fingerprint(settings()))
    assert saved.read(epochs=9).step == 7
    with pytest.raises(TrainingError, match=r"other settings \(learning_rate, seed\)"):
        saved.read(learning_rate=1.0, seed=2)


def test_a_save_with_a_setting_that_is_no_more_is_compared_as_it_stands(tmp_path: Path) -> None:
    saved = Saved(tmp_path, {**fingerprint(settings()), "seed": "none"})
    with pytest.raises(TrainingError, match=r"other settings \(seed\)"):
        saved.read()
