"""The loop's counts, with an objective as small as one can be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn

from bert.nn.losses import Loss
from training.engine import optim
from training.engine.distributed import Processes
from training.engine.train_loop import DataSource, StepData, TrainLoop
from training.finetuning.recipe import LinearSchedule
from training.settings import FinetuneSettings


class Summed(Processes):
    """One process that notes what it gives to the sums."""

    given: ClassVar[list[list[float]]] = []

    def sum(self, numbers: Sequence[float]) -> list[float]:
        self.given.append(list(numbers))
        return [max(1.0, number) for number in numbers]


class FourTargets(nn.Module):
    weights: ClassVar = {"loss": 1.0}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def targets(self, part: Any) -> dict[str, int]:
        return {"loss": 4}

    def forward(self, part: Any) -> dict[str, Loss]:
        return {"loss": Loss(self.weight.sum(), 4)}


def test_the_targets_of_a_stand_in_do_not_count() -> None:
    objective = FourTargets()
    adam = optim.optimizer(optim.trainable(objective), rate=1e-3, weight_decay=0.0, epsilon=1e-6)
    processes = Summed(0, 1, torch.device("cpu"))
    settings = FinetuneSettings(task="classification", output_dir=Path("unused"))
    data = cast(DataSource, None)
    loop = TrainLoop(
        objective, objective, adam, data, LinearSchedule(1e-3, 9, 0), settings, processes, seeds_steps=True
    )
    loop.step(StepData([None], 12, 3, {}))
    loop.step(StepData([None], 0, 0, {}, stand_in=True))
    counts, _, idle, _ = Summed.given
    assert counts == [4.0, 12.0, 3.0]
    assert idle == [0.0, 0.0, 0.0]
