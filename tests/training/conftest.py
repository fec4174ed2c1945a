"""Files to read, and a base so small that a whole run takes a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bert.base_models import MINILM, resolve_base
from bert.config import BertConfig
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForSimilarity
from bert.tokenizer import Tokenizer
from training.settings import FinetuneSettings

SHARED = Path(__file__).parents[3] / "shared" / "data"
Write = Callable[[str, str], Path]
SAMPLES = Path(__file__).parents[2] / "examples" / "data"

FILES: dict[str, dict[str, Any]] = {
    "classification": {"path": "sentiment-{}.csv"},
    "ner": {"path": "ner-{}.conll"},
    "qa": {"path": "qa-{}.json"},
    "multiple_choice": {"path": "choice-{}.jsonl"},
    "similarity": {"path": "similarity-{}.tsv", "format": "glue", "glue_task": "STS-B"},
}


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


def files(task: str, part: str) -> list[dict[str, Any]]:
    """Return the sample data of a task, "train" or "dev"."""
    file = FILES[task]
    return [{**file, "path": SAMPLES / file["path"].format(part)}]


def short_run(task: str, base: Path, output_dir: Path, **changes: Any) -> FinetuneSettings:
    """Return settings for a short run on the sample data."""
    values: dict[str, Any] = {
        "task": task,
        "base": str(base),
        "output_dir": output_dir,
        "train": files(task, "train"),
        "dev": files(task, "dev"),
        "epochs": 1,
        "batch_size": 8,
        "max_tokens": 48,
        "max_question_tokens": 20,
        "learning_rate": 1e-3,
    }
    return FinetuneSettings(**{**values, **changes})


@pytest.fixture
def settings_for(tiny_base: Path, tmp_path: Path) -> Callable[..., FinetuneSettings]:
    """Return a maker of settings for a short run in the test's own folder."""
    return lambda task, **changes: short_run(
        task, **{"base": tiny_base, "output_dir": tmp_path / "run", **changes}
    )


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; a test that wants it is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip("no folder shared/data beside the checkout: this test reads real data")
    return SHARED


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small file; returns its path."""

    def write_file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode())  # bytes: no line end is changed on the way
        return path

    return write_file
