"""Replaced-token detection: both models are transformers' ELECTRA, and what is drawn replaces what is masked."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bert.config import BertConfig
from bert.nn.losses import IGNORED
from bert.nn.pretraining_heads import generator_config
from tests.support.bert_reference import assert_same
from tests.support.every_objective import make
from tests.support.objectives import batch, config, filled, gradients
from training.pretraining.batch import PretrainBatch
from training.pretraining.objectives import replaced_token
from training.pretraining.objectives.replaced_token import ReplacedToken, replace_tokens, sample

LENGTHS = [9, 24, 5, 16]


def electra(seed: int) -> ReplacedToken:
    objective = make("replaced_token", seed)
    assert isinstance(objective, ReplacedToken)
    return objective


def padded(objective: ReplacedToken, seed: int = 0) -> PretrainBatch:
    return batch(seed, objective.model.config.vocab_size, LENGTHS)


def their_config(config: BertConfig, embedding_size: int) -> Any:
    values = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "position_embedding_type")}
    return transformers.ElectraConfig(**values, embedding_size=embedding_size)


def their_discriminator(objective: ReplacedToken) -> Any:
    shape = objective.model.config
    theirs = transformers.ElectraForPreTraining(their_config(shape, shape.hidden_size))
    weights = {k.replace("bert.", "electra."): v for k, v in objective.model.state_dict().items()}
    theirs.load_state_dict(weights)
    return theirs


def their_generator(objective: ReplacedToken) -> Any:
    shape = their_config(objective.generator.config, objective.model.config.hidden_size)
    theirs = transformers.ElectraForMaskedLM(shape)
    theirs.load_state_dict(objective.generator.state_dict())
    theirs.tie_weights()
    return theirs


def inputs(seen: PretrainBatch, ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "token_type_ids": seen.segment_ids, "attention_mask": seen.real}


@pytest.mark.parametrize("seed", [0, 3])
def test_losses_and_gradients_are_those_of_transformers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_token, "sample", lambda logits: logits.argmax(-1))
    objective = electra(seed)
    seen = padded(objective, seed)
    discriminator, generator = their_discriminator(objective), their_generator(objective)
    labels = torch.full((seen.input_ids.numel(),), IGNORED)
    labels[seen.masked] = seen.labels
    proposed = generator(**inputs(seen, seen.input_ids), labels=labels.view_as(seen.input_ids))
    drawn = proposed.logits.argmax(-1)
    ids = torch.where(labels.view_as(drawn) == IGNORED, seen.original_ids, drawn)
    replaced = (ids != seen.original_ids).long()
    assert int(replaced.sum()) > 0
    told = discriminator(**inputs(seen, ids), labels=replaced).loss
    losses, found = gradients(objective, seen)
    assert_same(torch.tensor(losses["mlm"]), proposed.loss.detach())
    assert_same(torch.tensor(losses["replaced_token"]), told.detach())
    (proposed.loss + 50 * told).backward()
    expected = {f"generator.{name}": p.grad for name, p in generator.named_parameters()}
    for name, parameter in discriminator.named_parameters():
        grad, shared = parameter.grad, f"generator.{name}"
        if name.startswith("electra.embeddings."):  # one table, two models
            grad = grad + expected.pop(shared)
        expected["model." + name.replace("electra.", "bert.")] = grad
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert_same(gradient, expected[name], name, atol=5e-5)  # gradients 50 times as large


def test_the_embeddings_are_one() -> None:
    objective = electra(0)
    table = objective.model.bert.embeddings
    assert objective.generator.electra.embeddings is table
    assert objective.generator.generator_lm_head.weight is table.word_embeddings.weight


def test_the_discriminator_teaches_the_generator_nothing_but_embeddings() -> None:
    objective = electra(0)
    objective(padded(objective))["replaced_token"].total.backward()
    taught = {name for name, p in objective.generator.named_parameters() if p.grad is not None}
    assert taught and all(name.startswith("electra.embeddings.") for name in taught)


def test_only_masked_positions_are_replaced_and_the_rest_is_original() -> None:
    objective = electra(1)
    seen = padded(objective)
    seen.input_ids.view(-1)[seen.masked] = 7  # whatever stood there is drawn over
    torch.manual_seed(0)
    ids, replaced = replace_tokens(seen, torch.zeros(len(seen.labels), objective.model.config.vocab_size))
    elsewhere = torch.ones(ids.numel(), dtype=torch.bool)
    elsewhere[seen.masked] = False
    assert torch.equal(ids.flatten()[elsewhere], seen.original_ids.flatten()[elsewhere])
    assert not replaced.flatten()[elsewhere].any() and replaced.any()


def test_the_original_piece_drawn_again_counts_as_original() -> None:
    objective = electra(1)
    seen = padded(objective)
    sure = torch.full((len(seen.labels), objective.model.config.vocab_size), -1e4)
    sure[torch.arange(len(seen.labels)), seen.labels] = 1e4
    sure[0] = sure[0].roll(1)
    ids, replaced = replace_tokens(seen, sure)
    assert replaced.flatten().nonzero().flatten().tolist() == [int(seen.masked[0])]
    assert int((ids != seen.original_ids).sum()) == 1


def test_pieces_are_drawn_as_likely_as_the_generator_says() -> None:
    torch.manual_seed(0)
    shares = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])
    drawn = sample(shares.log().expand(20_000, 5))
    counts = torch.bincount(drawn, minlength=5) / 20_000
    assert counts[4] == 0
    assert float((counts - shares).abs().max()) < 4 * (0.25 / 20_000) ** 0.5


def test_a_draw_is_repeated_from_its_seed() -> None:
    objective = electra(0)
    seen = padded(objective)
    totals = []
    for _ in range(2):
        torch.manual_seed(5)
        totals.append(objective(seen)["replaced_token"].total)
    assert torch.equal(*totals)


def test_half_precision_logits_are_drawn_from_in_float32() -> None:
    torch.manual_seed(0)
    drawn = sample(torch.zeros(4096, 64, dtype=torch.bfloat16))
    assert int(torch.bincount(drawn, minlength=64).min()) > 20


@pytest.mark.parametrize(("width", "hidden", "heads"), [(0.25, 192, 3), (1 / 3, 256, 4), (1.0, 768, 12)])
def test_the_generator_is_narrower(width: float, hidden: int, heads: int) -> None:
    shape = generator_config(BertConfig(), width)
    assert (shape.hidden_size, shape.num_attention_heads, shape.intermediate_size) == (
        hidden,
        heads,
        4 * hidden,
    )
    assert shape.num_hidden_layers == 12


def test_a_generator_of_full_width_has_no_projection() -> None:
    objective = filled(ReplacedToken(config(1), generator_width=1.0))
    assert not [name for name, _ in objective.named_parameters() if "embeddings_project" in name]
    assert gradients(objective, batch(1, objective.model.config.vocab_size, LENGTHS))[1]


def test_transformers_loads_the_generator(tmp_path: Path) -> None:
    objective = electra(0).eval()
    assert isinstance(objective, ReplacedToken)
    objective.save_beside(tmp_path, objective.state_dict())
    theirs, report = transformers.ElectraForMaskedLM.from_pretrained(
        tmp_path / "generator", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    seen = padded(objective)
    logits = theirs.eval()(**inputs(seen, seen.input_ids)).logits.flatten(0, 1)[seen.masked]
    assert_same(objective.masked_logits(seen).detach(), logits.detach())


def test_fresh_weights_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    for name, weight in ReplacedToken(config(2, initializer_range=0.05)).state_dict().items():
        if name.endswith("bias"):
            assert (weight == 0).all()
        elif not name.endswith("LayerNorm.weight"):
            assert float(weight.abs().max()) <= 0.1, name
