"""Learning rate and epochs: what the settings leave open, and the rate of each step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert.bodies.family import Family
from bert.config import BertConfig
from bert.tasks.registry import TASKS
from training.finetuning.batches import Dataset
from training.settings import FinetuneSettings

HIGHEST_RATE = 3e-4
SIZE_POWER = 2 / 3
"""A rate falls with this power of the number of weights: that of BERT large (2e-5) to that of BERT base (5e-5)."""
SIMILARITY_SHARE = 0.4
"""Share of BERT's rate for similarity, which has no fresh head: 2e-5 for base, RoBERTa's too (Reimers & Gurevych 2019)."""
ADAPTER_RATE = 5e-4
MIN_EPOCHS, MAX_EPOCHS = 3, 20
ENOUGH_STEPS = 200
"""Optimizer steps to reach by epochs beyond MIN_EPOCHS."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Learning rate and epochs of a run, with the reason for each default."""

    learning_rate: float
    epochs: float
    reasons: Mapping[str, str]
    """Setting → origin of its value; a given setting has none."""

    def applied(self, settings: FinetuneSettings) -> FinetuneSettings:
        """Return the settings with both filled in."""
        return settings.model_copy(update={"learning_rate": self.learning_rate, "epochs": self.epochs})

    def sentence(self, total_steps: int, warmup_steps: int) -> str:
        """Return the recipe in a line."""
        rate = np.format_float_scientific(self.learning_rate, trim="-", exp_digits=1)
        values = {"learning_rate": rate, "epochs": f"{self.epochs:g}"}
        parts = [
            f"{name} {value}" + (f" ({self.reasons[name]})" if name in self.reasons else "")
            for name, value in values.items()
        ]
        return f"{', '.join(parts)}: {total_steps:,} steps, {warmup_steps:,} of them warm-up"


def make_recipe(
    settings: FinetuneSettings,
    config: BertConfig,
    examples: int,
    steps_an_epoch: int,
    saved: Mapping[str, Any] | None = None,
) -> Recipe:
    """Choose the values that the settings leave out; `saved` are the settings of the resumed run."""
    saved = saved or {}
    reasons: dict[str, str] = {}
    rate = settings.learning_rate
    if rate is None and saved.get("learning_rate"):
        rate, reasons["learning_rate"] = saved["learning_rate"], "as the run began"
    elif rate is None:
        rate, reasons["learning_rate"] = default_rate(settings, config)
    epochs = settings.epochs
    if epochs is None and settings.max_steps:
        epochs = float(math.ceil(settings.max_steps / max(1, steps_an_epoch)))
        reasons["epochs"] = f"as many as max_steps {settings.max_steps:,} needs"
    elif epochs is None and saved.get("epochs"):
        epochs, reasons["epochs"] = saved["epochs"], "as the run began"
    elif epochs is None:
        epochs = float(default_epochs(steps_an_epoch))
        reasons["epochs"] = f"default for {examples:,} examples in batches of {settings.batch_size}"
    return Recipe(rate, epochs, reasons)


def default_rate(settings: FinetuneSettings, config: BertConfig) -> tuple[float, str]:
    """Return the peak learning rate for a base of this family and size, and the reason for it.

    The published rates fall with the size: 3e-4 for the miniatures (Turc et al. 2019, arXiv 1908.08962), 5e-5 for BERT
    base and 2e-5 for BERT large (Devlin et al. 2018). Other families' are beside them in `bert/families.py`.
    """
    if settings.lora:
        return ADAPTER_RATE, "default for an adapter"
    layers, width = len(config.layer_order), config.hidden_size
    published = config.family.learning_rates
    exact = {(at, wide): rate for at, wide, rate in published}
    rate = exact.get((layers, width)) or _one_digit(rate_of_size(published, layers, width))
    if TASKS[settings.task].embeds:
        berts = rate_of_size(Family().learning_rates, layers, width)
        rate = min(rate, _one_digit(SIMILARITY_SHARE * berts))
    return rate, f"default for {config.family.model_type} of {layers} layers, {width} wide"


def _one_digit(rate: float) -> float:
    return float(f"{rate:.0e}")


def rate_of_size(published: Sequence[tuple[int, int, float]], layers: int, width: int) -> float:
    """Return the rate for a size: between two published ones a power of the size, outside of them SIZE_POWER."""
    sizes, rates = zip(*((_weights(at, wide), rate) for at, wide, rate in published), strict=True)
    size = _weights(layers, width)
    nearest = min(max(size, sizes[0]), sizes[-1])
    between = math.exp(np.interp(math.log(nearest), np.log(sizes), np.log(rates)))
    return float(min(HIGHEST_RATE, between * (nearest / size) ** SIZE_POWER))


def _weights(layers: int, width: int) -> int:
    """Return the number of weights in the layers of a BERT."""
    return 12 * layers * width**2


def default_epochs(steps_an_epoch: int) -> int:
    """Return the epochs: more for little data, which needs as many steps (Zhang et al. 2020, arXiv 2006.05987)."""
    wanted = math.ceil(ENOUGH_STEPS / max(1, steps_an_epoch))
    return max(MIN_EPOCHS, min(MAX_EPOCHS, wanted))


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """Rate of a fine-tuning: up over the warm-up, then straight down to 0 at the last step."""

    peak_rate: float
    total_steps: int
    warmup_steps: int
    total_s: float = 0.0

    @classmethod
    def over(cls, data: Dataset, settings: FinetuneSettings) -> "LinearSchedule":
        """Return the schedule of a run over the data; `settings` leave neither learning_rate nor epochs open."""
        assert settings.learning_rate is not None, "the recipe has chosen it"
        steps = data.steps(settings)
        return cls(settings.learning_rate, steps, round(settings.warmup_ratio * steps))

    def done(self, step: int, seconds: float) -> float:
        """Return the share of the run that is over, 0 to 1."""
        return min(1.0, step / max(1, self.total_steps))

    def rate(self, step: int, seconds: float) -> float:
        """Return the learning rate of the step after `step` steps.

        `rate_share` of pretraining is for runs that are measured in shares, which takes each step at its middle.
        """
        if step < self.warmup_steps:
            return self.peak_rate * ((step + 1) / max(1, self.warmup_steps))
        left = (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        return self.peak_rate * max(0.0, left)
