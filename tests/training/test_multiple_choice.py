"""Multiple choice through bert-finetune, from files as users have them."""

import csv
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.data.examples import ChoiceExample
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.finetune import finetune
from training.settings import FinetuneSettings
from training.tasks.base import collate
from training.tasks.choice import ChoiceFinetuning

Make = Callable[..., FinetuneSettings]
SWAG_COLUMNS = (
    ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    + [f"ending{number}" for number in range(4)]
    + ["label"]
)


def write_swag(path: Path, rows: int, seed: int) -> Path:
    """Write a file with SWAG's columns, in which the right ending is the one that speaks of a dog."""
    drawn = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(SWAG_COLUMNS)
        for row in range(rows):
            label = drawn.randrange(4)
            others = drawn.sample(["sits down.", 'says "no", then leaves.', "turns, slowly.", "sings."], 4)
            endings = ["pets the dog." if n == label else ending for n, ending in enumerate(others)]
            first, start = f"A man walks past house {drawn.randrange(99)}.", drawn.choice(["He", "Someone"])
            table.writerow(
                [row, f"anetv_{row}", row, f"{first} {start}", first, start, "gold", *endings, label]
            )
    return path


def test_swag_csv_is_learned(settings_for: Make, tmp_path: Path) -> None:
    settings = settings_for(
        "multiple_choice",
        train=[{"path": write_swag(tmp_path / "train.csv", 48, 1)}],
        dev=[{"path": write_swag(tmp_path / "val.csv", 24, 2)}],
        epochs=6,
        learning_rate=3e-3,
    )
    assert TaskSpec.read(finetune(settings)).scores["val"]["accuracy"] == 1.0


def test_codah_tsv_is_fine_tuned_on(settings_for: Make, shared_data: Path, tmp_path: Path) -> None:
    for part, rows in (("train", 24), ("dev", 12)):
        lines = (shared_data / "choice" / f"codah-{part}.tsv").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{part}.tsv").write_text("\n".join(lines[:rows]) + "\n", encoding="utf-8")
    settings = settings_for(
        "multiple_choice", train=[{"path": tmp_path / "train.tsv"}], dev=[{"path": tmp_path / "dev.tsv"}]
    )
    assert 0 <= TaskSpec.read(finetune(settings)).scores["dev"]["accuracy"] <= 1


def test_examples_with_fewer_choices_lose_nothing_beside_others() -> None:
    task = ChoiceFinetuning(Tokenizer.load(resolve_base(MINILM)), TaskSpec("multiple_choice", max_tokens=32))
    counts = (2, 4, 3)
    features = task.features(
        [
            ChoiceExample("A cat", tuple(f"ending {n}" for n in range(count)), 1, str(count))
            for count in counts
        ]
    )
    logits = torch.randn(sum(counts), 1, generator=torch.Generator().manual_seed(0))
    together = task.loss(logits, collate(features, 0, torch.device("cpu")))
    rows = iter(logits[:, 0].double().numpy())
    alone = [np.array([next(rows) for _ in range(count)]) for count in counts]
    expected = sum(np.log(np.exp(scores).sum()) - scores[1] for scores in alone)
    assert float(together.total) == pytest.approx(expected, rel=1e-5)
    assert together.targets == 3
