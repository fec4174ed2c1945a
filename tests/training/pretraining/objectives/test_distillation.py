"""Distillation: each loss written out by hand; the teacher is read and never touched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bert.errors import CheckpointError, ConfigError
from bert.nn.checkpoint import save_checkpoint
from bert.nn.heads import BertForMaskedLM, BertForSimilarity
from tests.support.bert_reference import assert_same
from tests.support.every_objective import teacher
from tests.support.objectives import batch, config, filled, gradients
from training.pretraining.objectives.distillation import (
    Distillation,
    load_teacher,
    spread,
)
from training.pretraining.settings import DistillationSettings

SHAPE = config(4, num_hidden_layers=2)
LARGE = replace(SHAPE, num_hidden_layers=5, hidden_dropout_prob=0.5)


def chosen(**weights: Any) -> DistillationSettings:
    return DistillationSettings(teacher=Path("teacher"), **weights)


def distillation(**weights: Any) -> Distillation:
    objective = filled(Distillation(SHAPE, teacher(LARGE), chosen(**weights)), 1)
    assert isinstance(objective, Distillation)
    return objective


@pytest.mark.parametrize("over", ["all", "masked"])
def test_losses_are_those_written_out(over: str) -> None:
    objective = distillation(temperature=3.0, soft_over=over)
    packed = batch(1, SHAPE.vocab_size, [9, 24, 5], packed=True)
    losses = objective(packed)
    arguments = (packed.input_ids, packed.segment_ids, packed.attention_mask, packed.position_ids)
    hidden, theirs = objective.model.bert(*arguments), objective.teacher.bert(*arguments)
    soft, hard, away = torch.zeros(()), torch.zeros(()), torch.zeros(())
    labels = dict(zip(packed.masked.tolist(), packed.labels.tolist(), strict=True))
    for flat in packed.real.flatten().nonzero()[:, 0].tolist():
        ours = objective.model.score(hidden.flatten(0, 1)[flat])
        wanted = (objective.teacher.score(theirs.flatten(0, 1)[flat]) / 3).softmax(0)
        if over == "all" or flat in labels:
            soft = soft + 9 * (wanted * (wanted.log() - (ours / 3).log_softmax(0))).sum()
        if flat in labels:
            hard = hard - ours.log_softmax(0)[labels[flat]]
    for ours, wanted in zip(hidden[packed.real], theirs[packed.real], strict=True):
        away = away + 1 - ours @ wanted / (ours.norm() * wanted.norm())
    assert_same(losses["soft_mlm"].total.detach(), soft.detach(), "soft", atol=1e-3)
    assert_same(losses["mlm"].total.detach(), hard.detach(), "hard", atol=1e-4)
    assert_same(losses["cosine"].total.detach(), away.detach(), "cosine", atol=1e-4)


def test_weights_are_those_of_distilbert() -> None:
    assert distillation().weights == {"soft_mlm": 5.0, "mlm": 2.0, "cosine": 1.0}


def test_a_loss_without_weight_is_not_computed() -> None:
    objective = distillation(cosine_weight=0.0, hard_weight=0.0)
    assert list(objective(batch(1, SHAPE.vocab_size, [9]))) == ["soft_mlm"]


def test_the_teacher_is_not_trained_saved_or_moved_to_training() -> None:
    objective = distillation()
    before = {name: weight.clone() for name, weight in objective.teacher.state_dict().items()}
    assert not [name for name in objective.state_dict() if not name.startswith("model.")]
    gradients(objective.train(), batch(1, SHAPE.vocab_size, [9]))
    assert not objective.teacher.training
    assert not [p for p in objective.teacher.parameters() if p.requires_grad or p.grad is not None]
    assert all(torch.equal(before[name], weight) for name, weight in objective.teacher.state_dict().items())


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it() -> None:
    model = teacher(SHAPE)
    objective = Distillation(SHAPE, model, chosen())
    objective.model.load_state_dict(model.state_dict())
    losses = objective(batch(1, SHAPE.vocab_size, [9, 24]))
    assert float(losses["soft_mlm"].total.detach()) == pytest.approx(0, abs=1e-4)
    assert float(losses["cosine"].total.detach()) == pytest.approx(0, abs=1e-4)


def test_the_layers_kept_are_those_of_distilbert() -> None:
    assert spread(6, 12) == [0, 2, 4, 7, 9, 11]
    assert spread(12, 12) == list(range(12))
    assert spread(1, 12) == [0]


def test_a_student_starts_from_its_teacher() -> None:
    objective = distillation()
    objective.start_from_teacher()
    ours, theirs = objective.model.state_dict(), objective.teacher.state_dict()
    for name, weight in ours.items():
        source = name.replace("layer.1.", "layer.4.")
        assert torch.equal(weight, theirs[source]), name


def test_a_narrower_student_starts_afresh() -> None:
    narrow = replace(SHAPE, hidden_size=SHAPE.hidden_size // 2 * SHAPE.num_attention_heads)
    objective = Distillation(narrow, teacher(LARGE), chosen(cosine_weight=0.0))
    assert list(objective(batch(1, SHAPE.vocab_size, [9]))) == ["soft_mlm", "mlm"]
    with pytest.raises(ConfigError, match=r"cannot start from its teacher: .*word_embeddings"):
        objective.start_from_teacher()


def test_models_that_cannot_be_compared_are_refused() -> None:
    narrow = replace(SHAPE, hidden_size=2 * SHAPE.hidden_size)
    with pytest.raises(ConfigError, match="have no cosine: set cosine_weight to 0"):
        Distillation(narrow, teacher(LARGE), chosen())
    with pytest.raises(ConfigError, match=rf"vocab_size \({SHAPE.vocab_size}\) must be the teacher's"):
        Distillation(SHAPE, teacher(replace(LARGE, vocab_size=SHAPE.vocab_size + 1)), chosen())
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        Distillation(SHAPE, teacher(replace(LARGE, max_position_embeddings=4)), chosen())


def test_a_teacher_is_a_checkpoint_with_an_mlm_head(tmp_path: Path) -> None:
    model = teacher(LARGE)
    save_checkpoint(model, tmp_path / "teacher", "BertForMaskedLM", {})
    loaded = load_teacher(tmp_path / "teacher")
    assert isinstance(loaded, BertForMaskedLM)
    assert all(torch.equal(loaded.state_dict()[name], weight) for name, weight in model.state_dict().items())
    save_checkpoint(BertForSimilarity(LARGE), tmp_path / "headless", "BertModel", {})
    with pytest.raises(CheckpointError, match=r"is no teacher: it has no MLM head \(cls.predictions.bias"):
        load_teacher(tmp_path / "headless")
