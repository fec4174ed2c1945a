"""Left to right: transformers' loss and gradients, and nothing is seen that stands to the right."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bert import modeling_bert

from bert.nn.losses import IGNORED
from tests.support.bert_reference import assert_same, their_config
from tests.support.every_objective import make
from tests.support.objectives import MAX_TOKENS, batch, gradients
from training.pretraining.objectives.base import Objective, encode
from training.pretraining.objectives.language_models import causal_mask
from training.pretraining.pretrain_batch import PretrainBatch

LENGTHS = st.lists(st.integers(3, MAX_TOKENS), min_size=1, max_size=6)


@settings(max_examples=5)
@given(seed=st.integers(0, 9999), lengths=LENGTHS)
def test_loss_and_gradients_are_those_of_transformers(seed: int, lengths: list[int]) -> None:
    objective = make("left_to_right", seed)
    padded = batch(seed, objective.model.config.vocab_size, lengths)
    shape = their_config(objective.model.config)
    shape.is_decoder = True
    theirs = modeling_bert.BertLMHeadModel(shape)
    assert not theirs.load_state_dict(objective.model.state_dict(), strict=False).unexpected_keys
    expected = theirs(
        input_ids=padded.original_ids,
        token_type_ids=padded.segment_ids,
        attention_mask=padded.real,
        labels=padded.original_ids.masked_fill(~padded.real, IGNORED),
    ).loss
    losses, found = gradients(objective, padded)
    assert_same(torch.tensor(losses["next_token"]), expected.detach())
    expected.backward()
    for name, parameter in theirs.named_parameters():
        assert_same(found[f"model.{name}"], parameter.grad, name)


def states(objective: Objective, seen: PretrainBatch, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return encode(objective.model, seen, ids, causal_mask(seen)).flatten(0, 1)


@settings(max_examples=10)
@given(seed=st.integers(0, 9999), lengths=LENGTHS, packed=st.booleans(), data=st.data())
def test_no_token_sees_what_is_right_of_it(
    seed: int, lengths: list[int], packed: bool, data: st.DataObject
) -> None:
    objective = make("left_to_right", seed)
    vocab_size = objective.model.config.vocab_size
    seen = batch(seed, vocab_size, lengths, packed)
    which = data.draw(st.integers(0, len(lengths) - 1))
    at = data.draw(st.integers(0, lengths[which] - 1))
    first = int(seen.firsts[which])
    changed = seen.original_ids.clone()
    changed.view(-1)[first + at] = (changed.view(-1)[first + at] + 1) % vocab_size
    moved = (states(objective, seen, changed) - states(objective, seen, seen.original_ids)).abs().amax(-1)
    to_the_right = torch.zeros_like(moved, dtype=torch.bool)
    to_the_right[first + at : first + lengths[which]] = True
    assert (moved[~to_the_right & seen.real.flatten()] == 0).all()
    assert moved[first + at] > 0


def test_masks_are_not_read() -> None:
    objective = make("left_to_right")
    packed = batch(0, objective.model.config.vocab_size, [9, 24, 5], packed=True)
    unmasked = PretrainBatch(**{**vars(packed), "input_ids": packed.original_ids})
    assert torch.equal(objective(packed)["next_token"].total, objective(unmasked)["next_token"].total)


def test_all_tokens_but_the_first_are_told() -> None:
    objective = make("left_to_right")
    packed = batch(0, objective.model.config.vocab_size, [9, 24, 5], packed=True)
    assert objective.targets(packed) == {"next_token": 8 + 23 + 4}
