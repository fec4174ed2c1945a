"""A workshop for the session: tiny checkpoints trained on the sample data, and bundles made when asked for."""

import json
from pathlib import Path

import pytest

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.errors import CheckpointError
from bert.settings import read_settings
from tests.support.finetuning import files
from tests.support.workshop import Workshop
from tests.training.conftest import tiny_base
from training.finetune import finetune
from training.settings import FinetuneSettings

__all__ = ["tiny_base"]

# Task → epochs and learning rate: enough to learn the samples, and no more, for weights out of the ordinary are hard to
# round to 8 and 16 bits.
TINY_TASKS = {"classification": (15, 1e-3), "ner": (20, 2e-3), "qa": (15, 1e-3)}


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The checkpoint folder of the packaged base."""
    try:
        return resolve_base(MINILM)
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def workshop(shared_folder: Path) -> Workshop:
    """Makes bundles, each once a session."""
    folder = shared_folder / "workshop"
    folder.mkdir(exist_ok=True)
    return Workshop(folder)


@pytest.fixture(scope="session")
def tiny_workshop(workshop: Workshop, tiny_base: Path) -> Workshop:
    """The workshop with a checkpoint for each of TINY_TASKS: 2 layers of 32, trained on the sample data."""
    for task in TINY_TASKS:
        folder = workshop.folder / f"tiny-{task}"
        with workshop.lock(folder.name):
            is_trained = (folder / "best").is_dir()
            workshop.checkpoints[folder.name] = (
                folder / "best" if is_trained else train_tiny(task, tiny_base, folder)
            )
    return workshop


def train_tiny(task: str, base: Path, folder: Path) -> Path:
    """Train on the sample data, told so on the command line of bert-finetune."""
    epochs, learning_rate = TINY_TASKS[task]
    settings = read_settings(
        FinetuneSettings,
        [
            *("--task", task, "--base", str(base), "--output-dir", str(folder)),
            *("--train", json.dumps(files(task, "train"), default=str)),
            *("--dev", json.dumps(files(task, "dev"), default=str)),
            *("--epochs", str(epochs), "--batch-size", "8", "--learning-rate", str(learning_rate)),
            *("--max-tokens", "60", "--max-question-tokens", "20", "--stride", "16"),
            *("--eval-every-steps", "1000", "--threads", "1"),
        ],
    )
    return finetune(settings)
