"""A step reads nothing back from the device, and what it sends lies in memory that a GPU fetches by itself.

On the meta device there is nothing to read: whatever would wait for a GPU fails there.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.finetuning import SAMPLES
from training.engine import device, optim
from training.engine.distributed import Processes
from training.finetuning.batches import Dataset, EpochBatches
from training.finetuning.loop import make_loop
from training.finetuning.recipe import LinearSchedule
from training.finetuning.trainer import FinetuneTrainer
from training.settings import TeacherSettings
from training.tasks.base import Feature, Floats

META = torch.device("meta")
COLUMNS = {"text": "sentence1", "text_pair": "sentence2", "label": ""}
POSITIVE = {
    part: [{"path": SAMPLES / f"similarity-{part}.tsv", "format": "tsv", "columns": COLUMNS}]
    for part in ("train", "dev")
}


class OnlyPinned:
    """Counts what is pinned, and refuses other copies to the device."""

    def __init__(self) -> None:
        self.pinned: set[int] = set()
        self.to = Tensor.to

    def pin(self, tensor: Tensor) -> Tensor:
        self.pinned.add(tensor.data_ptr())
        return tensor

    def send(self, tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if META in arguments and tensor.device.type == "cpu":
            assert tensor.data_ptr() in self.pinned, f"{tensor.shape} is not pinned"
            assert options.get("non_blocking")
        return self.to(tensor, *arguments, **options)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> OnlyPinned:
    found = OnlyPinned()
    monkeypatch.setattr(device, "PINNED_FOR", {"meta"})
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: found.pin(tensor))
    monkeypatch.setattr(device, "to_host", lambda measured: measured)
    # This device has no autocast, no operators over lists of tensors, and no fused AdamW.
    monkeypatch.setitem(optim._OPTIMIZERS, "adamw", torch.optim.AdamW)
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda given, most, **_: clip(given, most))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    return found


def logits(run: FinetuneTrainer, feature: Feature) -> Floats:
    rows = run.predict(feature.encodings)
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("classification", {}),
        ("classification", {"class_weights": "balanced"}),
        ("ner", {}),
        ("qa", {}),
        ("multiple_choice", {}),
        ("similarity", {}),
        ("similarity", {"embeddings": {"loss": "cosent"}}),
        ("similarity", {**POSITIVE, "embeddings": {"symmetric": True, "dimensions": [8]}}),
    ],
)
def test_no_task_waits_for_the_device(
    task: str, changes: dict[str, Any], begin: Callable[..., FinetuneTrainer],
    copies: OnlyPinned, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = begin(task, **changes)
    schedule = run.loop.schedule
    assert isinstance(run.loop.data, EpochBatches) and isinstance(schedule, LinearSchedule)
    features = run.loop.data.data.features[:5]
    settings = run.settings
    kinds = [(settings, features)]
    if task != "similarity":  # which has no teacher
        taught = settings.model_copy(update={"teacher": TeacherSettings(checkpoint="unused")})
        kinds.append((taught, [replace(feature, soft=logits(run, feature)) for feature in features]))
    loops = []
    for settings, features in kinds:
        data = Dataset(features, [len(features)], [1.0])
        loop = make_loop(settings, run.task, run.trained, data, schedule, Processes(0, 1, META))
        loop.step(loop.data.next(loop.state))  # makes the optimiser's moments
        loops.append(loop)
    monkeypatch.setattr(Tensor, "to", lambda *given, **options: copies.send(*given, **options))
    for loop in loops:
        copies.pinned.clear()
        loop.step(loop.data.next(loop.state))
        assert len(copies.pinned) > 3
