"""Which saves a run goes on from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from bert.errors import TrainingError
from training.core.state import Progress, load_state, save_state
from training.core.train_loop import fingerprint
from training.settings import DataFile, FinetuneSettings


def settings(**changes: Any) -> FinetuneSettings:
    train = [DataFile(path=Path("a.csv"), repeat=2)]
    return FinetuneSettings(task="classification", output_dir=Path("x"), train=train, **changes)


def saved(folder: Path, prints: dict[str, Any]) -> tuple[nn.Module, AdamW]:
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_state(folder, model, optimizer, Progress(step=7), prints)
    return model, optimizer


def test_a_save_that_is_older_than_a_setting_is_gone_on_from_at_its_default(tmp_path: Path) -> None:
    old = fingerprint(settings())
    del old["start_from"], old["train"][0]["hub_revision"]
    model, optimizer = saved(tmp_path, old)
    assert load_state(tmp_path, model, optimizer, fingerprint(settings())).step == 7
    with pytest.raises(TrainingError, match=r"other settings \(start_from\)"):
        load_state(tmp_path, model, optimizer, fingerprint(settings(start_from=Path("before"))))


def test_a_save_of_other_settings_is_refused(tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path, fingerprint(settings()))
    assert load_state(tmp_path, model, optimizer, fingerprint(settings(epochs=9))).step == 7
    with pytest.raises(TrainingError, match=r"other settings \(learning_rate, seed\)"):
        load_state(tmp_path, model, optimizer, fingerprint(settings(learning_rate=1.0, seed=2)))


def test_a_save_with_a_setting_that_is_no_more_is_compared_as_it_stands(tmp_path: Path) -> None:
    model, optimizer = saved(tmp_path, {**fingerprint(settings()), "seed": "none"})
    with pytest.raises(TrainingError, match=r"other settings \(seed\)"):
        load_state(tmp_path, model, optimizer, fingerprint(settings()))
