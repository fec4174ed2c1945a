"""Outputs, losses and gradients of every head against transformers, with the same weights."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert.nn import losses
from bert.nn.heads import BertForSequenceClassification, BertForSimilarity, BertHead
from bert.tasks.spec import POOLINGS
from tests.support.bert_reference import (
    HEADS,
    LABELS,
    Batch,
    assert_same,
    fill,
    our_logits,
    our_loss,
    random_batch,
    random_targets,
    small_config,
    their_config,
    their_logits,
    twins,
)
from tests.support.pooling import embedded

SEEDS = st.integers(0, 10_000)


def assert_same_gradients(ours: BertHead, theirs: Any) -> None:
    """Fail unless every parameter of ours has the gradient of its twin."""
    compared = 0
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        assert_same(parameter.grad, theirs.get_parameter(name).grad, name)
        compared += parameter.numel()
    assert compared == sum(p.numel() for p in theirs.parameters())  # theirs counts a tied tensor once, too


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=5)
@given(seed=SEEDS, texts=st.sampled_from([2, 4]), tokens=st.integers(1, 20))
def test_a_head_is_that_of_transformers(name: str, seed: int, texts: int, tokens: int) -> None:
    config = small_config(seed)
    ours, theirs = twins(name, config, seed)
    batch = random_batch(config, seed, texts, tokens)
    targets = random_targets(name, config, batch, seed)
    logits, expected = our_logits(ours, batch), theirs(**batch.theirs(name), **targets)
    for our, their in zip(logits, their_logits(expected), strict=True):
        assert_same(our, their, "logits")
    loss = our_loss(name, logits, targets)
    assert_same(loss, expected.loss, "loss")
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("name", HEADS)
def test_the_same_dropout_gives_the_same_training_step(name: str) -> None:
    config = small_config(5, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    ours, theirs = twins(name, config, attention="sdpa")
    batch = random_batch(config, 5)
    torch.manual_seed(1)
    logits = our_logits(ours.train(), batch)
    torch.manual_seed(1)
    expected = their_logits(theirs.train()(**batch.theirs(name)))
    for our, their in zip(logits, expected, strict=True):
        assert_same(our, their, "logits")
    assert not torch.allclose(logits[0], our_logits(ours.eval(), batch)[0])


@pytest.mark.parametrize("name", HEADS)
def test_at_length_512(name: str) -> None:
    config = small_config(3, max_position_embeddings=512)
    ours, theirs = twins(name, config)
    batch = random_batch(config, 3, texts=2, tokens=512)
    with torch.no_grad():
        expected = their_logits(theirs(**batch.theirs(name)))
        for our, their in zip(our_logits(ours, batch), expected, strict=True):
            assert_same(our, their, "logits")


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_other_problems_of_a_sequence_have_the_losses_of_transformers(problem: str) -> None:
    config = small_config(7)
    ours, theirs = twins("BertForSequenceClassification", config)
    theirs.config.problem_type = problem
    batch = random_batch(config, 7)
    targets = torch.rand(4, LABELS, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    if problem != "regression":
        targets = targets.round()
    loss = (losses.regression if problem == "regression" else losses.multi_label)(ours(*batch), targets).mean
    expected = theirs(**batch.theirs(""), labels=targets).loss
    assert_same(loss, expected)
    loss.backward()
    expected.backward()
    assert_same_gradients(ours, theirs)


def test_one_number_a_text_is_regression_as_in_transformers() -> None:
    config = small_config(8)
    ours = BertForSequenceClassification(config, 1)
    fill(ours, 8)
    from transformers.models.bert.modeling_bert import BertForSequenceClassification as Theirs

    theirs = Theirs(their_config(config, labels=1))
    theirs.load_state_dict(ours.state_dict())
    batch, scores = random_batch(config, 8), torch.tensor([0.0, 1.5, 5.0, 3.2])
    loss = losses.regression(ours.eval()(*batch), scores).mean
    assert_same(loss, theirs.eval()(**batch.theirs(""), labels=scores).loss)


def test_similarity_is_the_mean_of_the_tokens_of_length_one() -> None:
    config = small_config(9)
    model = BertForSimilarity(config).eval()
    fill(model, 9)
    batch = random_batch(config, 9)
    hidden = model.bert(*batch).detach()
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        mean = torch.stack([hidden[row, token] for token in range(length)]).sum(0) / length
        assert_same(model(*batch)[row].detach(), mean / mean.square().sum().sqrt())


@pytest.mark.parametrize("modes", [*((name,) for name in POOLINGS), POOLINGS], ids="+".join)
def test_each_pooling_is_that_of_sentence_transformers(modes: tuple[str, ...]) -> None:
    config = small_config(9)
    model = BertForSimilarity(config, modes).eval()
    fill(model, 9)
    batch = random_batch(config, 9)
    wanted = embedded(model.bert(*batch).detach(), batch.attention_mask, modes, normalize=True)
    assert_same(model(*batch).detach(), wanted)


def test_similarity_without_padding_needs_no_mask() -> None:
    config = small_config(9)
    model = BertForSimilarity(config).eval()
    ids = random_batch(config, 9).input_ids
    assert_same(model(ids).detach(), model(ids, None, torch.ones_like(ids)).detach())


def test_a_selection_of_positions_scores_as_all_do() -> None:
    config = small_config(2)
    ours, _ = twins("BertForMaskedLM", config)
    batch = random_batch(config, 2)
    hidden = ours.bert(*batch)
    chosen = batch.attention_mask.bool()
    assert_same(ours.score(hidden[chosen]).detach(), ours.score(hidden)[chosen].detach())


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_the_decoder_is_the_word_embedding(name: str) -> None:
    model: Any = HEADS[name](small_config())
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("name", HEADS)
def test_fresh_weights_are_those_of_the_paper(name: str) -> None:
    # hidden_size == vocab_size: the transform before the decoder is drawn as every layer is.
    config = small_config(4, hidden_size=64, vocab_size=64, num_attention_heads=4, initializer_range=0.05)
    torch.manual_seed(0)
    for parameter_name, weight in HEADS[name](config).state_dict().items():
        if parameter_name.endswith("LayerNorm.weight"):
            assert (weight == 1).all()
        elif parameter_name.endswith("bias"):
            assert (weight == 0).all()
        else:
            assert float(weight.abs().max()) <= 0.1
            assert 0.7 < float(weight.std()) / (0.05 * 0.88) < 1.3, parameter_name  # cut at two deviations


def test_fresh_padding_is_zero() -> None:
    config = small_config(4)
    embeddings = HEADS["BertForMaskedLM"](config).bert.embeddings.word_embeddings.weight
    assert (embeddings[config.pad_token_id] == 0).all()
    assert int((embeddings == 0).all(1).sum()) == 1


def test_a_text_scores_the_same_padded_and_alone() -> None:
    config = small_config(6)
    ours, _ = twins("BertForTokenClassification", config)
    batch = random_batch(config, 6)
    together: Tensor = ours(*batch).detach()
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        cut = Batch(*(tensor[row : row + 1, :length] for tensor in batch))
        assert_same(together[row, :length], ours(cut.input_ids, cut.segment_ids)[0].detach())
