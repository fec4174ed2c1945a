"""Default learning rate and epochs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert.config import BertConfig
from bert.tasks.registry import TASKS
from bert.tasks.task import Head
from training.settings import FinetuneSettings

BERT_BASE_WEIGHTS = 12 * 12 * 768**2
"""Number of weights in the layers of BERT base."""
BERT_BASE_RATE = 5e-5
HIGHEST_RATE = 3e-4
SIMILARITY_SHARE = 0.4
"""Share of the rate for similarity, which has no fresh head: 2e-5 for BERT base (Reimers & Gurevych 2019)."""
ADAPTER_RATE = 5e-4
FEATURES_RATE = 1e-3
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
    """Return the peak learning rate for a base of this size, and the reason for it.

    The published rates fall with the size: 3e-4 for the miniatures (Turc et al. 2019, arXiv 1908.08962), 5e-5 for BERT
    base and 2e-5 for BERT large (Devlin et al. 2018). The power 2/3 goes through base and large.
    """
    if settings.features:
        return FEATURES_RATE, "default for a BiLSTM on a frozen base"
    if settings.lora:
        return ADAPTER_RATE, "default for an adapter"
    weights = 12 * len(config.layer_order) * config.hidden_size**2
    rate = min(HIGHEST_RATE, BERT_BASE_RATE * (BERT_BASE_WEIGHTS / weights) ** (2 / 3))
    if TASKS[settings.task].head is Head.EMBEDDING:
        rate *= SIMILARITY_SHARE
    return float(
        f"{rate:.0e}"
    ), f"default for a base of {len(config.layer_order)} layers, {config.hidden_size} wide"


def default_epochs(steps_an_epoch: int) -> int:
    """Return the epochs: more for little data, which needs as many steps (Zhang et al. 2020, arXiv 2006.05987)."""
    wanted = math.ceil(ENOUGH_STEPS / max(1, steps_an_epoch))
    return max(MIN_EPOCHS, min(MAX_EPOCHS, wanted))
