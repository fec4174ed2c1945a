"""MLM with and without pairs: transformers' losses and gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bert import modeling_bert

from bert.errors import TrainingError
from bert.nn.losses import IGNORED
from tests.support.bert_reference import assert_same, their_config
from tests.support.objectives import MAX_TOKENS, PAD, batch, config, examples, filled, gradients
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.language_models import MaskedLanguageModel, MaskedLanguageModelWithPairs
from training.pretraining.pretrain_batch import PretrainBatch, collate

LENGTHS = st.lists(st.integers(3, MAX_TOKENS), min_size=1, max_size=9)
OBJECTIVES: dict[str, Any] = {
    "BertForMaskedLM": MaskedLanguageModel,
    "BertForPreTraining": MaskedLanguageModelWithPairs,
}


def twin(objective: Objective) -> Any:
    """Return transformers' model with the same weights."""
    theirs = getattr(modeling_bert, objective.architecture)(their_config(objective.model.config, labels=2))
    assert not theirs.load_state_dict(objective.model.state_dict(), strict=False).unexpected_keys
    return theirs


def their_labels(batch: PretrainBatch) -> Tensor:
    """Return labels (R, T) with IGNORED wherever nothing is masked."""
    labels = torch.full((batch.input_ids.numel(),), IGNORED)
    labels[batch.masked] = batch.labels
    return labels.view_as(batch.input_ids)


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=5)
@given(seed=st.integers(0, 9999), lengths=LENGTHS)
def test_losses_and_gradients_are_those_of_transformers(name: str, seed: int, lengths: list[int]) -> None:
    objective = filled(OBJECTIVES[name](config(seed)), seed)
    padded = batch(seed, objective.model.config.vocab_size, lengths)
    theirs = twin(objective)
    targets = {"labels": their_labels(padded)}
    if name == "BertForPreTraining":
        targets["next_sentence_label"] = padded.pair_labels
    expected = theirs(
        input_ids=padded.input_ids, token_type_ids=padded.segment_ids, attention_mask=padded.real, **targets
    ).loss
    losses, found = gradients(objective, padded)
    assert sum(losses.values()) == pytest.approx(float(expected.detach()), abs=1e-5, rel=1e-5)
    expected.backward()
    for parameter_name, parameter in theirs.named_parameters():
        assert_same(found[f"model.{parameter_name}"], parameter.grad, parameter_name)


def test_the_logits_that_are_evaluated_are_those_that_are_trained() -> None:
    objective = filled(MaskedLanguageModelWithPairs(config(1), "sop"), 1)
    packed = batch(1, objective.model.config.vocab_size, [5, 9, 24, 3], packed=True)
    words, pairs = objective.logits(packed)
    assert words is not None and pairs is not None
    assert words.shape == (len(packed.labels), objective.model.config.vocab_size)
    losses = objective(packed)
    assert list(losses) == ["mlm", "sop"]
    mean = torch.nn.functional.cross_entropy
    assert_same(losses["mlm"].mean.detach(), mean(words, packed.labels).detach())
    assert_same(losses["sop"].mean.detach(), mean(pairs, packed.pair_labels).detach())


@pytest.mark.parametrize("packed", [False, True])
def test_paddings_row_is_taught_by_the_output_alone_whatever_its_index(packed: bool) -> None:
    """A table without a padding index, as Google's, thus differs in that row's first value only."""
    objective = filled(MaskedLanguageModelWithPairs(config(1)), 1)
    padded = batch(1, objective.model.config.vocab_size, [5, 9, 24, 3], packed)
    assert not padded.real.all()
    _, usual = gradients(objective, padded)
    words = objective.model.bert.embeddings.word_embeddings
    assert words.padding_idx == PAD
    words.padding_idx = None
    _, without = gradients(objective, padded)
    for name, gradient in usual.items():
        assert_same(without[name], gradient)
    assert usual["model.bert.embeddings.word_embeddings.weight"][PAD].any()


def test_a_pair_objective_refuses_examples_without_pairs() -> None:
    objective = MaskedLanguageModelWithPairs(config(1))
    single = collate(examples(1, 20, [5, 9], pairs=False), PAD, MAX_TOKENS, packed=False)
    with pytest.raises(TrainingError, match="'nsp', but the examples are no labelled pairs"):
        objective(single)
