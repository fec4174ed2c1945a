"""The span-boundary objective, written out by hand for each masked token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bert.errors import TrainingError
from tests.support.bert_reference import assert_same
from tests.support.every_objective import make
from tests.support.objectives import CLS, FIRST_WORD, MAX_TOKENS, PAD, SEP, batch, examples
from training.pretraining.examples.base import MaskedExample
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.language_models import SpanBoundary
from training.pretraining.pretrain_batch import collate


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
    total, counted = torch.zeros(()), 0
    for example in drawn:
        ids = torch.from_numpy(example.ids).long()[None]
        segments = torch.from_numpy(example.segment_ids).long()[None]
        hidden = objective.model.bert(ids, segments)[0]
        assert example.spans is not None
        for at, label, (first, last) in zip(
            example.positions.tolist(), example.labels.tolist(), example.spans.tolist(), strict=True
        ):
            assert first <= at <= last
            if example.special[first - 1] or example.special[last + 1]:  # at the edge of the text
                continue
            counted += 1
            logits = by_hand(objective, hidden[first - 1], hidden[last + 1], at - first)
            total = total - logits.log_softmax(0)[label]
    loss = objective(collate(drawn, PAD, MAX_TOKENS, packed=True))["span_boundary"]
    assert_same(loss.total.detach(), total.detach())
    assert 0 < counted < sum(len(example.labels) for example in drawn)
    assert loss.targets == counted


def test_both_losses_count_the_same() -> None:
    assert span_objective(0).weights == {"mlm": 1.0, "span_boundary": 1.0}


def long_span(first: int, last: int) -> MaskedExample:
    """[CLS] 22 tokens [SEP] with one span masked."""
    original = np.array([CLS, *range(FIRST_WORD, FIRST_WORD + 22), SEP], np.int32)
    positions = np.arange(first, last + 1, dtype=np.int32)
    spans = np.tile(np.array([first, last], np.int32), (len(positions), 1))
    special = np.isin(np.arange(24), [0, 23])
    return MaskedExample(
        original, np.zeros(24, np.int8), positions, original[positions], special, original, spans=spans
    )


def test_spans_at_the_edge_of_the_text_have_no_boundary_targets() -> None:
    """The numbers that `span_masking` of facebookresearch/SpanBERT gives with `--endpoints external`."""
    objective = span_objective(0)
    drawn = [long_span(1, 3), long_span(2, 3), long_span(21, 22), long_span(20, 21), long_span(3, 20)]
    found = collate(drawn, PAD, MAX_TOKENS, packed=False)
    assert found.bounded is not None and found.borders is not None
    assert found.bounded.tolist() == [3, 4, 7, 8, *range(9, 9 + 15)]  # of 18 tokens 15 count
    assert found.borders.tolist()[:4] == [[25, 28], [25, 28], [91, 94], [91, 94]]
    assert objective.targets(found) == {"mlm": 27, "span_boundary": 19}
    losses = objective(found)
    assert (losses["mlm"].targets, losses["span_boundary"].targets) == (27, 19)


def test_a_batch_of_edges_only_trains_on() -> None:
    objective = span_objective(0)
    losses = objective(collate([long_span(1, 3)], PAD, MAX_TOKENS, packed=False))
    (losses["mlm"].total + losses["span_boundary"].total).backward()
    assert float(losses["span_boundary"].total.detach()) == 0.0
    assert all(p.grad is not None and not p.grad.isnan().any() for p in objective.boundary.parameters())


def test_the_decoder_is_the_word_embedding() -> None:
    objective = span_objective(0)
    assert objective.boundary.decoder.weight is objective.model.bert.embeddings.word_embeddings.weight


def test_the_head_is_not_in_the_checkpoint() -> None:
    assert not [name for name in span_objective(0).model.state_dict() if "boundary" in name]


def test_masking_without_spans_is_refused() -> None:
    objective: Objective = span_objective(0)
    without = replace(batch(0, objective.model.config.vocab_size, [9]), bounded=None, borders=None)
    with pytest.raises(TrainingError, match="needs masking by spans"):
        objective(without)
