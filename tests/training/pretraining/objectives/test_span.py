"""The span-boundary objective, written out by hand for each masked token."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bert.errors import TrainingError
from tests.support.bert_reference import assert_same
from tests.support.every_objective import make
from tests.support.objectives import MAX_TOKENS, PAD, batch, examples
from training.pretraining.batch import collate
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.span import SpanBoundary


def span_objective(seed: int) -> SpanBoundary:
    objective = make("span", seed)
    assert isinstance(objective, SpanBoundary)
    return objective


def by_hand(objective: SpanBoundary, left: Tensor, right: Tensor, offset: int) -> Tensor:
    """Return logits (V,) from the hidden states (H,) on either side, as in the paper's section 3.2."""
    head, words = objective.boundary, objective.model.bert.embeddings.word_embeddings.weight
    value = torch.cat([left, right, head.position_embeddings.weight[offset]])
    for linear, norm in ((head.linear1, head.layer_norm1), (head.linear2, head.layer_norm2)):
        value = head.activation(linear.weight @ value + linear.bias)
        mean, variance = value.mean(), value.var(unbiased=False)
        value = (value - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    return words @ value + head.bias


def test_the_loss_is_the_one_written_out() -> None:
    objective = span_objective(2)
    drawn = examples(2, objective.model.config.vocab_size, [24, 7, 15])
    total = torch.zeros(())
    for example in drawn:
        ids = torch.from_numpy(example.ids).long()[None]
        segments = torch.from_numpy(example.segment_ids).long()[None]
        hidden = objective.model.bert(ids, segments)[0]
        assert example.spans is not None
        for at, label, (first, last) in zip(
            example.positions.tolist(), example.labels.tolist(), example.spans.tolist(), strict=True
        ):
            assert first <= at <= last
            logits = by_hand(objective, hidden[first - 1], hidden[last + 1], at - first)
            total = total - logits.log_softmax(0)[label]
    loss = objective(collate(drawn, PAD, MAX_TOKENS, packed=True))["span_boundary"]
    assert_same(loss.total.detach(), total.detach())
    assert loss.targets == sum(len(example.labels) for example in drawn)


def test_both_losses_count_the_same() -> None:
    assert span_objective(0).weights == {"mlm": 1.0, "span_boundary": 1.0}


def test_the_decoder_is_the_word_embedding() -> None:
    objective = span_objective(0)
    assert objective.boundary.decoder.weight is objective.model.bert.embeddings.word_embeddings.weight


def test_the_head_is_not_in_the_checkpoint() -> None:
    assert not [name for name in span_objective(0).model.state_dict() if "boundary" in name]


def test_masking_without_spans_is_refused() -> None:
    objective: Objective = span_objective(0)
    without = replace(batch(0, objective.model.config.vocab_size, [9]), spans=None)
    with pytest.raises(TrainingError, match="needs masking by spans"):
        objective(without)
