"""Texts of two words of a topic, from which a small model learns in a second which belong together."""

from pathlib import Path
from typing import Any

import numpy as np

from training.finetune import finetune
from training.settings import FinetuneSettings

TOPICS = [
    "apple pear plum",
    "car bus train",
    "rain snow wind",
    "red green blue",
    "king queen prince",
    "run walk jump",
]


def write_topics(folder: Path) -> tuple[list[str], list[str]]:
    """Write `train.csv` and `dev.csv`: two words of a topic, two others of it and two of another one; return their rows."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(96):
        topic, other = rng.permutation(len(TOPICS))[:2]
        words = [TOPICS[topic].split(), TOPICS[other].split()]
        texts = [" ".join(rng.permutation(words[n])[:2]) for n in (0, 0, 1)]
        rows.append(",".join(texts))
    parts = rows[:64], rows[64:]
    for name, part in zip(("train", "dev"), parts, strict=True):
        (folder / f"{name}.csv").write_text("anchor,positive,negative\n" + "\n".join(part), encoding="utf-8")
    return parts


def run_on_topics(base: Path, folder: Path, **changes: Any) -> Path:
    """Train on the topics for a few epochs; return the checkpoint."""
    write_topics(folder)
    values: dict[str, Any] = {
        "task": "similarity", "base": str(base), "output_dir": folder / "run", "max_tokens": 16, "batch_size": 16,
        "epochs": 6, "learning_rate": 1e-3, "dropout": 0.0, "attention_dropout": 0.0,
        "train": [{"path": folder / "train.csv"}], "dev": [{"path": folder / "dev.csv"}],
    }  # fmt: skip
    return finetune(FinetuneSettings(**{**values, **changes}))
