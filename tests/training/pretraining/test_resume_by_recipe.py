"""A resumed run of every recipe has the numbers of a run that was never stopped, dropout and draws included."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from bert.config import BertConfig
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForMaskedLM
from training.corpus.shards import Corpus
from training.engine import state
from training.engine.distributed import Processes
from training.engine.train_loop import TrainLoop
from training.pretrain import make_objective
from training.pretraining.data import Batches, masking
from training.pretraining.examples.base import SpecialIds
from training.pretraining.recipes import Recipe
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import make_loop

ALONE = Processes(0, 1, torch.device("cpu"))
SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
OF_FAMILY = {"deberta_v3": {"position_buckets": 16}, "modernbert": {"local_attention": 8}}


@pytest.fixture(scope="module")
def given(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Settings that a recipe asks for, by its name."""
    folder, pieces = tmp_path_factory.mktemp("given"), Corpus.open(corpus).vocab_size
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(pieces, 8)).astype(np.float32))
    (folder / "phrases.txt").write_text("w1 w2\nw3 w4 w5\n", encoding="utf-8")
    torch.manual_seed(1)
    teacher = BertForMaskedLM(
        BertConfig(vocab_size=pieces, intermediate_size=64, **{**SIZE, "num_hidden_layers": 4})
    )
    save_checkpoint(teacher, folder / "teacher", "BertForMaskedLM", {})
    return {
        "macbert": {"masking": {"vectors": folder / "vectors.npy"}},
        "ernie": {"masking": {"phrases": folder / "phrases.txt"}},
        "distilbert": {"distillation": {"teacher": str(folder / "teacher")}},
    }


def new_loop(recipe: str, corpus: Path, given: dict[str, dict[str, Any]]) -> TrainLoop:
    settings = PretrainSettings(
        **{
            "corpus": corpus, "output_dir": Path("unused"), "recipe": recipe, "max_tokens": 48, "batch_size": 4,
            "max_steps": 6, "model": {**SIZE, **OF_FAMILY.get(recipe, {})}, **given.get(recipe, {}),
        }
    )  # fmt: skip
    prepared = Corpus.open(corpus)
    special = SpecialIds.load(prepared.folder)
    torch.manual_seed(settings.seed)
    objective = make_objective(settings, prepared, special)
    return make_loop(
        settings, objective, Batches(settings, prepared, masking(settings, prepared, special), ALONE), ALONE
    )


def numbers(loop: TrainLoop, steps: int = 100) -> list[tuple[float, float]]:
    found = []
    for step in loop.steps():
        found.append((step["loss"], step["grad_norm"]))
        if len(found) == steps:
            break
    return found


@pytest.mark.parametrize("recipe", get_args(Recipe))
def test_a_resumed_run_repeats_every_bit(
    recipe: str, corpus: Path, given: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    undisturbed = numbers(new_loop(recipe, corpus, given))
    first = new_loop(recipe, corpus, given)
    before = numbers(first, 3)
    state.write_state(tmp_path, *state.gather_state(first.objective, first.optimizer), first.state, {})
    torch.manual_seed(999)  # what the new process drew before does not matter
    again = new_loop(recipe, corpus, given)
    again.state = state.read_state(tmp_path, again.objective, again.optimizer, {})
    assert before + numbers(again) == undisturbed
    assert len(undisturbed) == 6
