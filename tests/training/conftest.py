"""Files to read, and a base so small that a whole run takes a second."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.config import BertConfig
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForSimilarity
from bert.tokenizer import Tokenizer
from tests.support.finetuning import short_run
from training.settings import FinetuneSettings


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
