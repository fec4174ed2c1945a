"""Batches of labelled features: which an epoch draws, and which of them this process computes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.engine.batch_order import draw, epoch_batches
from training.engine.distributed import Processes
from training.engine.state import RunState
from training.engine.train_loop import StepData
from training.settings import FinetuneSettings
from training.tasks.base import Feature, FinetuneTask, collate


@dataclass
class Dataset:
    """Training features of all files, one file after another, and how often each is drawn an epoch."""

    features: list[Feature]
    counts: list[int]
    repeats: list[float]

    def batches(self, settings: FinetuneSettings, epoch: int) -> list[NDArray[np.int64]]:
        """Return the epoch's batches as indices into `features`."""
        drawn = draw(self.counts, self.repeats, settings.seed, epoch)
        lengths = [self.features[i].tokens for i in drawn]
        cut = epoch_batches(lengths, settings.batch_size, settings.seed, epoch)
        return [drawn[batch] for batch in cut]

    def steps(self, settings: FinetuneSettings) -> int:
        """Count the batches of all epochs, or up to `max_steps`."""
        assert settings.epochs is not None, "the recipe has chosen them"
        whole, part = int(settings.epochs), settings.epochs % 1
        steps = sum(len(self.batches(settings, epoch)) for epoch in range(whole))
        if part:
            steps += math.ceil(part * len(self.batches(settings, whole)))
        return min(steps, settings.max_steps or steps)


class EpochBatches:
    """Source of each step's batch, epoch after epoch; of several processes each takes every n-th feature."""

    def __init__(
        self, data: Dataset, settings: FinetuneSettings, task: FinetuneTask, processes: Processes
    ) -> None:
        """Keep the data; nothing is drawn before the first batch."""
        self.data, self.settings, self.task, self.processes = data, settings, task, processes
        self._drawn: tuple[int, list[NDArray[np.int64]]] | None = None

    def next(self, state: RunState) -> StepData:
        """Return the data of the step that follows `state`."""
        epoch, number = state.position.get("epoch", 0), state.position.get("batch", 0)
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, self.data.batches(self.settings, epoch)
        batches = self._drawn[1]
        last = number + 1 == len(batches)
        position = {"epoch": epoch + 1, "batch": 0} if last else {"epoch": epoch, "batch": number + 1}
        features = [self.data.features[i].in_epoch(epoch) for i in batches[number]]
        rng = np.random.default_rng([self.settings.seed, epoch, number])
        return self._step(self.task.drawn(features, rng), position)

    def close(self) -> None:
        """No-op: nothing runs beside the steps."""

    def _step(self, features: Sequence[Feature], position: dict[str, Any]) -> StepData:
        mine = [features[i] for i in self.processes.share(features)]
        chosen = mine or list(features[:1])
        # As many parts in every process: those of a model in parts wait for one another.
        count = min(self.settings.accumulation_steps, max(1, len(features) // self.processes.world))
        cuts = [len(chosen) * part // count for part in range(count + 1)]
        device, pad_id = self.processes.device, self.task.tokenizer.pad_id
        parts = [collate(chosen[i:j], pad_id, device) for i, j in pairwise(cuts)]
        if not len(mine):
            return StepData(parts, 0, 0, position, stand_in=True)
        return StepData(parts, sum(part.tokens for part in parts), len(mine), position)
