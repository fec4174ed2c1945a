"""The pretraining loop: normalisation, parts, resuming, the paper's AdamW."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from bert.config import BertConfig
from bert.errors import TrainingError
from training.corpus.shards import Corpus
from training.engine.checkpoints import CheckpointStore
from training.engine.distributed import Processes
from training.engine.state import RunState, gather_state, read_state, write_state
from training.engine.train_loop import TrainLoop
from training.pretraining.data import Batches, masking
from training.pretraining.examples.base import SpecialIds
from training.pretraining.objectives.language_models import MaskedLanguageModelWithPairs
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import make_loop

ALONE = Processes(0, 1, torch.device("cpu"))


def loop_settings(corpus: Path, **values: Any) -> PretrainSettings:
    return PretrainSettings(
        **{
            "corpus": corpus, "output_dir": Path("unused"), "batch_size": 8, "max_tokens": 48, "max_steps": 12,
            "learning_rate": 1e-3, "warmup_ratio": 0.1, "objective": "mlm+nsp", **values,
        }
    )  # fmt: skip


def loop_of(corpus: Path, dropout: float = 0.1, **values: Any) -> TrainLoop:
    settings = loop_settings(corpus, **values)
    prepared, special = Corpus.open(corpus), SpecialIds.load(corpus)
    config = BertConfig(
        vocab_size=prepared.vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(settings.seed)
    objective = MaskedLanguageModelWithPairs(config)
    return make_loop(
        settings, objective, Batches(settings, prepared, masking(settings, prepared, special), ALONE), ALONE
    )


def write(folder: Path, loop: TrainLoop, fingerprint: dict[str, Any]) -> None:
    write_state(folder, *gather_state(loop.objective, loop.optimizer), loop.state, fingerprint)


def read(folder: Path, loop: TrainLoop, fingerprint: dict[str, Any]) -> RunState:
    return read_state(folder, loop.objective, loop.optimizer, fingerprint)


def losses(loop: TrainLoop, steps: int = 1000) -> list[float]:
    found = []
    for numbers in loop.steps():
        found.append(numbers["loss"])
        if len(found) == steps:
            break
    return found


@pytest.mark.parametrize(
    ("values", "killed_after"),
    [
        *(({}, step) for step in (1, 6, 11)),
        ({"batch_size": 13}, 6),
        ({"masking": {"static_dupes": 2}}, 6),
        ({"ramp_from": 2, "ramp_share": 0.8}, 6),
        ({"optimizer": "lamb"}, 6),
        ({"optimizer": "stable_adamw", "max_grad_norm": 0}, 6),
        (
            {"phases": [{"max_tokens": 32, "share": 0.5}, {"max_tokens": 48, "share": 0.5, "batch_size": 4}]},
            6,
        ),
        (
            {"phases": [{"max_tokens": 32, "share": 0.5}, {"max_tokens": 48, "share": 0.5, "batch_size": 4}]},
            1,
        ),
    ],
)
def test_a_resumed_run_has_the_same_losses_to_the_last_bit(
    corpus: Path, tmp_path: Path, values: dict[str, Any], killed_after: int
) -> None:
    undisturbed = losses(loop_of(corpus, **values))
    first = loop_of(corpus, **values)
    before = losses(first, killed_after)
    store = CheckpointStore(tmp_path)
    folder = store.save(killed_after, lambda to: write(to, first, {"a": 1}))
    torch.manual_seed(999)  # what the new process drew before does not matter
    again = loop_of(corpus, **values)
    again.state = read(folder, again, {"a": 1})
    assert before + losses(again) == undisturbed


def test_a_state_of_another_run_is_refused(corpus: Path, tmp_path: Path) -> None:
    loop = loop_of(corpus)
    write(tmp_path, loop, {"seed": 1})
    with pytest.raises(TrainingError, match="other settings \\(seed\\)"):
        read(tmp_path, loop, {"seed": 2})


def test_parts_of_a_batch_train_as_the_whole_does(corpus: Path) -> None:
    whole = losses(loop_of(corpus, dropout=0.0))
    parts = losses(loop_of(corpus, dropout=0.0, microbatch_size=3))
    padded = losses(loop_of(corpus, dropout=0.0, packed=False))
    assert parts == pytest.approx(whole, abs=1e-5)
    assert padded == pytest.approx(whole, abs=1e-5)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on one core
def test_batches_from_workers_are_those_made_in_between(corpus: Path) -> None:
    """The workers start again where the batch grows, and go on with equal batches after it."""
    values = {"max_steps": 6, "ramp_from": 4, "ramp_share": 0.3}
    loop = loop_of(corpus, data_workers=2, **values)
    with closing(loop.data):
        assert losses(loop) == losses(loop_of(corpus, **values))


def test_asked_to_stop_it_stops_after_the_step(corpus: Path) -> None:
    loop = loop_of(corpus)
    for numbers in loop.steps():
        loop.stop_asked = numbers["step"] >= 3
    assert loop.state.step == 4 and not loop.is_over


def test_without_bias_correction_it_is_the_papers_adam(corpus: Path) -> None:
    """Against the update of google-research/bert optimization.py, written out."""
    loop = loop_of(corpus, dropout=0.0, bias_correction=False, weight_decay=0.1, adam_beta2=0.99)
    weight = dict(loop.objective.named_parameters())["model.bert.encoder.layer.0.intermediate.dense.weight"]
    expected = weight.detach().clone().double()
    m, v = torch.zeros_like(expected), torch.zeros_like(expected)
    gradients: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        assert weight.grad is not None
        gradients.append(weight.grad.detach().clone().double())

    loop.optimizer.register_step_pre_hook(keep)
    for numbers in loop.steps():
        g = gradients[-1]
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        expected = expected - numbers["lr"] * (m / (v.sqrt() + 1e-6) + 0.1 * expected)
        if numbers["step"] == 5:
            break
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-4, atol=1e-6)
