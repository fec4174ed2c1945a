"""Files to read, and a base so small that a whole run takes a second."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.config import BertConfig
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForSimilarity
from bert.tokenizer import Tokenizer
from tests.support.checkpoints import SPECS
from tests.support.families import relative
from tests.support.finetuning import short_run
from tests.support.undrawn import DRAWN_BY, undrawn
from training.finetune import finetune
from training.finetuning.trainer import FinetuneTrainer
from training.report import plots
from training.settings import FinetuneSettings


@pytest.fixture(scope="session", autouse=True)
def _empty_pictures() -> Iterator[None]:
    """Leave the pictures of reports empty: to draw them takes two thirds of a short run."""
    with undrawn():
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pictures of reports drawn in this test."""
    for module, name in DRAWN_BY:
        monkeypatch.setattr(module, name, getattr(plots, name))


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint folder: 2 layers of 32, the packaged vocabulary."""
    folder = tmp_path_factory.mktemp("tiny-base")
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(resolve_base(MINILM))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    save_checkpoint(BertForSimilarity(config), folder, "BertModel", {})
    tokenizer.save(folder)
    return folder


@pytest.fixture
def settings_for(tiny_base: Path, tmp_path: Path) -> Callable[..., FinetuneSettings]:
    """Return a maker of settings for a short run in the test's own folder."""
    return lambda task, **changes: short_run(
        task, **{"base": tiny_base, "output_dir": tmp_path / "run", **changes}
    )


@pytest.fixture(scope="session")
def family_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a maker of random bases of a family with the packaged vocabulary; each is written once."""
    tokenizer, made = Tokenizer.load(resolve_base(MINILM)), dict[str, Path]()

    def write(kind: str, **changes: Any) -> Path:
        key = json.dumps([kind, changes])
        if key not in made:
            made[key] = tmp_path_factory.mktemp("base") / kind
            shape = {"vocab_size": tokenizer.vocab_size, **changes}
            relative(kind, SPECS["similarity"], **shape).save_pretrained(made[key])
            tokenizer.save(made[key])
        return made[key]

    return write


@pytest.fixture(scope="session")
def trained(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a maker of checkpoints that tests read and leave as they are: each run is made once."""
    made: dict[str, Path] = {}

    def train(task: str, **changes: Any) -> Path:
        key = json.dumps([task, changes], sort_keys=True, default=str)
        if key not in made:
            values = {"base": tiny_base, "output_dir": tmp_path_factory.mktemp(task), **changes}
            settings = short_run(task, **values)
            made[key] = finetune(settings, f"train --seed {settings.seed}")
        return made[key]

    return train


@pytest.fixture
def begin(
    settings_for: Callable[..., FinetuneSettings], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FinetuneTrainer]:
    """Return what builds a run up to its first step."""

    def build(task: str, **changes: Any) -> FinetuneTrainer:
        runs: list[FinetuneTrainer] = []
        with monkeypatch.context() as patch:
            patch.setattr(FinetuneTrainer, "run", lambda run: runs.append(run))
            finetune(settings_for(task, **changes))
        return runs[0]

    return build
