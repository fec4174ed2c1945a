"""Properties of every objective: packing changes nothing, targets are counted right, the model is an ordinary BERT."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bert.config import BertConfig
from bert.nn.checkpoint import load_into, save_weights
from bert.nn.encoder import recompute_activations
from bert.nn.heads import BertForSequenceClassification
from tests.support import varlen
from tests.support.bert_reference import assert_same
from tests.support.every_objective import DETECTORS, MAKERS, make
from tests.support.objectives import MAX_TOKENS, batch, gradients
from training.pretraining.objectives import replaced_token
from training.pretraining.objectives.base import Objective

LENGTHS = st.lists(st.integers(3, MAX_TOKENS), min_size=1, max_size=9)


@pytest.fixture(autouse=True, scope="module")
def likeliest() -> Any:
    """Let ELECTRA's generator propose the likeliest word: a draw differs from row to row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaced_token, "sample", lambda logits: logits.argmax(-1))
        yield


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=5)
@given(seed=st.integers(0, 9999), lengths=LENGTHS)
def test_packed_rows_give_what_padded_ones_give(name: str, seed: int, lengths: list[int]) -> None:
    objective = make(name, seed).double()  # in float32 large gradients differ by more than the bound
    vocab_size = objective.model.config.vocab_size
    losses, found = gradients(objective, batch(seed, vocab_size, lengths))
    packed_losses, packed = gradients(objective, batch(seed, vocab_size, lengths, packed=True))
    assert packed_losses == pytest.approx(losses, abs=1e-5, rel=1e-5)
    assert packed.keys() == found.keys()
    for parameter_name, gradient in found.items():
        assert_same(packed[parameter_name], gradient, parameter_name)


# DeBERTa's scores have terms that the kernel does not take.
@pytest.mark.parametrize("name", [n for n in MAKERS if n != "deberta_v3"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_kernel_of_gpus_gives_what_masks_give(
    name: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = make(name, 3).double()
    seen = batch(3, objective.model.config.vocab_size, [9, 24, 5, 11, 3], packed)
    losses, found = gradients(objective, seen)
    varlen.with_the_reference(monkeypatch)
    by_kernel, gradients_by_kernel = gradients(objective, seen)
    assert bool(varlen.CALLS) != objective.model.config.body.has_score_terms
    assert {call["stretches"] for call in varlen.CALLS} <= {len(seen.stretches) - 1}
    assert by_kernel == pytest.approx(losses, abs=1e-5, rel=1e-5)
    for parameter_name, gradient in found.items():
        assert_same(gradients_by_kernel[parameter_name], gradient, parameter_name)


@pytest.mark.parametrize("name", MAKERS)
def test_every_weight_gets_a_gradient(name: str) -> None:
    objective = make(name)
    _, found = gradients(objective, batch(0, objective.model.config.vocab_size, [9, 24, 24]))
    assert found.keys() == dict(objective.named_parameters()).keys()
    assert all(gradient.any() for gradient in found.values())


@pytest.mark.parametrize("name", MAKERS)
def test_targets_are_known_before_the_losses(name: str) -> None:
    objective = make(name)
    packed = batch(0, objective.model.config.vocab_size, [9, 24, 5], packed=True)
    counted = {loss: value.targets for loss, value in objective(packed).items()}
    assert counted == objective.targets(packed)
    assert counted.keys() == objective.weights.keys()


@pytest.mark.parametrize("name", MAKERS)
def test_recomputed_activations_give_the_same_gradients(name: str) -> None:
    objective = make(name, 1)
    padded = batch(1, objective.model.config.vocab_size, [9, 24, 5])
    losses, found = gradients(objective, padded)
    recompute_activations(objective)
    again, recomputed = gradients(objective, padded)
    assert again == losses
    assert all(torch.equal(recomputed[parameter], gradient) for parameter, gradient in found.items())


@pytest.mark.parametrize("name", MAKERS)
def test_half_precision_is_close(name: str) -> None:
    objective = make(name, 2)
    packed = batch(2, objective.model.config.vocab_size, [9, 24, 5, 11], packed=True)
    losses, found = gradients(objective, packed)
    with torch.autocast("cpu", torch.bfloat16):
        halved, rough = gradients(objective, packed)
    for loss, value in losses.items():
        assert halved[loss] == pytest.approx(value, rel=0.05, abs=0.02)
    assert all(gradient.dtype == torch.float32 for gradient in rough.values())
    assert cosine(rough, found) > 0.98


def cosine(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the cosine of the angle between two gradients."""
    ours, theirs = (torch.cat([each[name].flatten() for name in left]) for each in (left, right))
    return float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))


def save(objective: Objective, folder: Path) -> None:
    """Write the model as the end of a run does."""
    weights = objective.model_weights(dict(objective.named_parameters()))
    save_weights(weights, objective.model.config, folder, objective.architecture, {})


def hidden_of(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        hidden: Tensor = model(ids)
    return hidden


@pytest.mark.parametrize("name", MAKERS)
def test_the_saved_model_is_an_ordinary_checkpoint(name: str, tmp_path: Path) -> None:
    objective = make(name).eval()
    save(objective, tmp_path)
    ids = batch(0, objective.model.config.vocab_size, [9, 9]).input_ids
    expected = hidden_of(objective.model.bert, ids)
    fine_tuned = BertForSequenceClassification(BertConfig.read(tmp_path), 2).eval()
    fresh = load_into(fine_tuned, tmp_path)
    assert {fresh_name.split(".")[0] for fresh_name in fresh} <= {"classifier", "bert"}
    assert not [fresh_name for fresh_name in fresh if ".pooler." not in fresh_name and "bert." in fresh_name]
    assert torch.equal(hidden_of(fine_tuned.bert, ids), expected)
    config = objective.model.config
    without = {"add_pooling_layer": False} if config.model_type == "bert" else {}
    theirs, report = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True, **without)
    assert not report["missing_keys"]
    assert_same(hidden_of(theirs.eval(), ids).last_hidden_state, expected)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in DETECTORS])
def test_transformers_loads_the_head_too(name: str, tmp_path: Path) -> None:
    objective = make(name).eval()
    save(objective, tmp_path)
    kind = getattr(transformers, objective.architecture)
    theirs, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = batch(0, objective.model.config.vocab_size, [9, 9]).input_ids
    output = theirs.eval()(ids)
    logits = output.logits if "logits" in output else output.prediction_logits
    assert_same(objective.model(ids).detach(), logits.detach())
