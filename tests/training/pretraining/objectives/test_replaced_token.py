"""Replaced-token detection: both models are those of transformers, and what is drawn replaces what is masked."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.checkpoint import save_weights
from bert.nn.encoder import activation
from bert.nn.losses import IGNORED
from tests.support.bert_reference import assert_same
from tests.support.configs import config_of
from tests.support.every_objective import DEBERTA_V3, DETECTORS, deberta, make
from tests.support.every_objective import electra as as_electra
from tests.support.objectives import batch, config, filled, gradients
from training.engine import optim
from training.pretraining.objectives import replaced_token
from training.pretraining.objectives.replaced_token import (
    OffsetEmbedding,
    ReplacedToken,
    generator_config,
    offsets,
    replace_tokens,
    sample,
)
from training.pretraining.pretrain_batch import PretrainBatch
from training.pretraining.settings import ReplacedTokenSettings

LENGTHS = [9, 24, 5, 16]
MLM, RTD, HEAD = "mlm", "replaced_token", "mask_predictions."


def made(name: str, seed: int = 0) -> ReplacedToken:
    objective = make(name, seed)
    assert isinstance(objective, ReplacedToken)
    return objective


def electra(seed: int) -> ReplacedToken:
    return made("replaced_token", seed)


def padded(objective: ReplacedToken, seed: int = 0) -> PretrainBatch:
    return batch(seed, objective.model.config.vocab_size, LENGTHS)


def inputs(seen: PretrainBatch, ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "token_type_ids": seen.segment_ids, "attention_mask": seen.real.long()}


def written(objective: ReplacedToken, folder: Path) -> Path:
    """Write both models as the end of a run does."""
    weights = dict(objective.named_parameters())
    model = objective.model_weights(weights)
    save_weights(model, objective.model.config, folder, objective.architecture, {})
    objective.save_beside(folder, weights, {})
    return folder


def loaded(kind: Any, folder: Path, allowed: str = "") -> Any:
    """Load a class of transformers without a missing tensor, or one left over that `allowed` does not begin."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert all(allowed and name.startswith(allowed) for name in report["unexpected_keys"]), report
    return model.train()  # there is no dropout


class Discriminator(torch.nn.Module):
    """DeBERTa's body in transformers, with the head that it has no class for (microsoft/DeBERTa)."""

    def __init__(self, folder: Path, config: BertConfig) -> None:
        super().__init__()
        self.deberta = loaded(transformers.DebertaV2Model, folder, HEAD)
        tensors = of_part(load_file(folder / "model.safetensors"), HEAD)
        # Names of parameters have no dots.
        self.parts = torch.nn.ParameterDict({name.replace(".", "/"): x for name, x in tensors.items()})
        self.eps, self.act = config.layer_norm_eps, activation(config.hidden_act)

    def forward(self, **given: Tensor) -> Tensor:
        hidden = self.deberta(**given).last_hidden_state
        at = self.parts
        inner = hidden[:, :1] + hidden
        inner = F.layer_norm(inner, inner.shape[-1:], at["LayerNorm/weight"], at["LayerNorm/bias"], self.eps)
        inner = self.act(F.linear(inner, at["dense/weight"], at["dense/bias"]))
        return F.linear(inner, at["classifier/weight"], at["classifier/bias"])[..., 0]

    def gradients(self) -> dict[str, Tensor]:
        body = {f"deberta.{name}": p.grad for name, p in self.deberta.named_parameters()}
        head = {HEAD + name.replace("/", "."): p.grad for name, p in self.parts.items()}
        return {name: gradient for name, gradient in {**body, **head}.items() if gradient is not None}


def both(objective: ReplacedToken, folder: Path, seen: PretrainBatch) -> tuple[Tensor, Tensor, Any, Any]:
    """Return transformers' losses of the generator and the discriminator, and the two models."""
    generator = loaded(transformers.AutoModelForMaskedLM, folder / "generator")
    labels = torch.full((seen.input_ids.numel(),), IGNORED)
    labels[seen.masked] = seen.labels
    labels = labels.view_as(seen.input_ids)
    proposed = generator(**inputs(seen, seen.input_ids), labels=labels)
    ids = torch.where(labels == IGNORED, seen.original_ids, proposed.logits.argmax(-1))
    replaced = ids != seen.original_ids
    assert int(replaced.sum()) > 0
    if objective.model.config.model_type == "deberta-v2":
        told = Discriminator(folder, objective.model.config)
        logits = told(**inputs(seen, ids))[seen.real]
        loss = F.binary_cross_entropy_with_logits(logits, replaced[seen.real].float())
        return proposed.loss, loss, generator, told
    kind = transformers.ElectraForPreTraining
    if objective.model.config.model_type == "electra":
        told = loaded(kind, folder)
    else:  # a BERT's: its file has no class for the head
        shape = objective.model.config.to_dict()
        shape = {k: v for k, v in shape.items() if k not in ("model_type", "position_embedding_type")}
        told = kind(transformers.ElectraConfig(**{**shape, "embedding_size": shape["hidden_size"]}))
        weights = objective.model.state_dict()
        told.load_state_dict({k.replace("bert.", "electra."): v for k, v in weights.items()})
    return proposed.loss, told(**inputs(seen, ids), labels=replaced.long()).loss, generator, told


def own_names(found: Mapping[str, Tensor], config: BertConfig, architecture: str) -> dict[str, Tensor]:
    """Return gradients by the names of the files' tensors."""
    return config.family.own_weights(dict(found), architecture, asdict(config))


def of_part(found: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): gradient for name, gradient in found.items() if name.startswith(prefix)
    }


def assert_all_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert_same(gradient, theirs[name], name, atol=1e-4)  # gradients 50 times as large


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", ["replaced_token", "electra"])
def test_losses_and_gradients_are_those_of_transformers(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replaced_token, "sample", lambda logits: logits.argmax(-1))
    objective = made(name, seed)
    seen = padded(objective, seed)
    mlm, rtd, generator, told = both(objective, written(objective, tmp_path), seen)
    losses, found = gradients(objective, seen)
    assert_same(torch.tensor(losses[MLM]), mlm.detach())
    assert_same(torch.tensor(losses[RTD]), rtd.detach())
    (mlm + 50 * rtd).backward()
    theirs = {k: p.grad for k, p in told.named_parameters()}
    beside = {k: p.grad for k, p in generator.named_parameters()}
    for key in [key for key in beside if key.startswith("electra.embeddings.")]:  # one table, two models
        theirs[key] = theirs[key] + beside.pop(key)
    model = {k.replace("bert.", "electra."): g for k, g in of_part(found, "model.").items()}
    assert_all_same(model, theirs)
    own = own_names(of_part(found, "generator."), objective.generator.config, "BertForMaskedLM")
    assert_all_same(own, beside)


@pytest.mark.parametrize("seed", [0, 3])
def test_disentangled_losses_and_gradients_are_those_of_transformers(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replaced_token, "sample", lambda logits: logits.argmax(-1))
    objective = made("deberta_v3", seed)
    seen = padded(objective, seed)
    mlm, rtd, generator, told = both(objective, written(objective, tmp_path), seen)
    losses, found = gradients(objective, seen)
    assert_same(torch.tensor(losses[MLM]), mlm.detach())
    assert_same(torch.tensor(losses[RTD]), rtd.detach())
    (mlm + 50 * rtd).backward()
    ours = own_names(of_part(found, "model."), objective.model.config, objective.architecture)
    assert_all_same(ours, told.gradients())  # an offset's gradient is that of the sum
    own = own_names(of_part(found, "generator."), objective.generator.config, "BertForMaskedLM")
    assert_all_same(own, {k: p.grad for k, p in generator.named_parameters()})


def test_the_embeddings_are_one() -> None:
    objective = electra(0)
    ours, theirs = objective.model.bert.embeddings, objective.generator.bert.embeddings
    assert [*ours.parameters()] == [*theirs.parameters()]
    assert objective.generator.cls.predictions.decoder.weight is theirs.word_embeddings.weight


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("sharing", ["all", "gradient_disentangled", "none"])
def test_the_discriminator_teaches_the_generator_shared_embeddings_only(name: str, sharing: Any) -> None:
    shape = made(name).model.config
    settings = ReplacedTokenSettings(embedding_sharing=sharing, generator_width=1.0, generator_depth=0.5)
    objective = filled(ReplacedToken(shape, settings))
    assert isinstance(objective, ReplacedToken)
    objective(padded(objective))["replaced_token"].total.backward()
    taught = {name for name, p in objective.generator.named_parameters() if p.grad is not None}
    assert bool(taught) == (sharing == "all")
    assert all(name.startswith("bert.embeddings.") for name in taught)
    table = objective.model.bert.embeddings.word_embeddings
    assert isinstance(table, OffsetEmbedding) == (sharing == "gradient_disentangled")
    assert table.weight.grad is not None and table.weight.grad.any()


@pytest.mark.parametrize("name", DETECTORS)
def test_models_that_share_no_gradients_are_clipped_apart(name: str) -> None:
    objective = made(name)
    gradients(objective, padded(objective))
    groups = optim.clip_groups(optim.trainable(objective), objective.clipped_apart)
    assert len(groups) == (2 if name == "deberta_v3" else 1)
    assert {key for group in groups for key in group} == optim.trainable(objective).keys()
    norms = [optim.clip(group, 1e-3) for group in groups]
    assert [optim.clip(group, 0) for group in groups] == pytest.approx([1e-3] * len(groups), rel=1e-3)
    assert min(norms) > 1e-3


def test_offsets_start_at_zero_and_are_added_in_the_file(tmp_path: Path) -> None:
    objective = ReplacedToken(deberta(config(1)), DEBERTA_V3)
    tables = dict(offsets(objective.model))
    assert set(tables) == {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "token_type")}
    assert not any(table.weight.any() for table in tables.values())
    filled(objective)
    written(objective, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")["deberta.embeddings.word_embeddings.weight"]
    table = tables["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(saved, table.weight + objective.generator.bert.embeddings.word_embeddings.weight)
    beside = load_file(tmp_path / "generator" / "model.safetensors")
    assert torch.equal(beside["deberta.embeddings.word_embeddings.weight"], table.origin.weight)


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("with_generator", [True, False])
def test_a_base_goes_on_with_its_generator_or_a_fresh_one(
    name: str, with_generator: bool, tmp_path: Path
) -> None:
    objective = made(name, 1)
    written(objective, tmp_path)
    if not with_generator:
        (tmp_path / "generator" / "model.safetensors").unlink()
    settings = DEBERTA_V3 if name == "deberta_v3" else ReplacedTokenSettings()
    torch.manual_seed(5)
    again = ReplacedToken(objective.model.config, settings, objective.generator_shape)
    assert again.load_base(tmp_path) == ([] if with_generator else ["generator/"])
    seen = padded(objective)
    ids = seen.original_ids
    assert_same(again.model.bert(ids).detach(), objective.model.bert(ids).detach())
    same = torch.allclose(again.logits(seen)[0], objective.logits(seen)[0], atol=1e-5)
    assert same == with_generator
    if not with_generator:  # its embeddings are the model's
        theirs, ours = again.generator.bert.embeddings, again.model.bert.embeddings
        assert torch.equal(theirs.word_embeddings(ids), ours.word_embeddings(ids))


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


@pytest.mark.parametrize(
    ("model", "settings", "published"),
    [
        ({"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}, (0.25, 1.0), (64, 1, 256, 12)),
        ({}, (1 / 3, 1.0), (256, 4, 1024, 12)),
        (
            {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24},
            (0.25, 1.0),
            (256, 4, 1024, 24),
        ),
        ({"model_type": "deberta-v2"}, (1.0, 0.5), (768, 12, 3072, 6)),
    ],
    ids=["electra-small", "electra-base", "electra-large", "deberta-v3-base"],
)  # fmt: skip
def test_generators_have_the_published_shapes(
    model: dict[str, Any], settings: tuple[float, float], published: tuple[int, ...]
) -> None:
    shape = generator_config(config_of(**{"model_type": "electra", **model}), *settings)
    names = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
    assert tuple(getattr(shape, name) for name in names) == published


def test_a_bert_has_an_electra_as_its_generator() -> None:
    shape = generator_config(BertConfig(), 0.25)
    assert (shape.model_type, shape.embedding_width, shape.hidden_size) == ("electra", 768, 192)


def test_a_family_with_embeddings_of_its_width_has_no_narrower_generator() -> None:
    shape = config_of(model_type="mpnet")
    with pytest.raises(ConfigError, match="a generator 192 wide cannot share embeddings 768 wide in a mpnet"):
        generator_config(shape, 0.25)
    assert generator_config(shape, 0.25, shared=False).embedding_width == 192


def test_a_generator_of_another_vocabulary_is_refused() -> None:
    shape = config(1)
    other = generator_config(config(1, vocab_size=shape.vocab_size + 1))
    with pytest.raises(ConfigError, match="they do not belong together"):
        ReplacedToken(shape, None, other)


def test_a_narrow_debertas_generator_is_loaded_too(tmp_path: Path) -> None:
    shape = deberta(config(1, hidden_size=32, num_attention_heads=4))
    objective = filled(ReplacedToken(shape, ReplacedTokenSettings(generator_width=0.5)))
    assert isinstance(objective, ReplacedToken)
    theirs = loaded(transformers.DebertaV2ForMaskedLM, written(objective, tmp_path) / "generator")
    assert theirs.config.hidden_size == 16 and theirs.config.embedding_size == 32
    seen = padded(objective)
    logits = theirs(**inputs(seen, seen.input_ids)).logits.flatten(0, 1)[seen.masked]
    assert_same(objective.logits(seen)[0].detach(), logits.detach())


def test_a_generator_of_full_width_has_no_projection() -> None:
    objective = filled(ReplacedToken(config(1), ReplacedTokenSettings(generator_width=1.0)))
    assert not [name for name, _ in objective.named_parameters() if "embeddings_project" in name]
    assert gradients(objective, batch(1, objective.model.config.vocab_size, LENGTHS))[1]


def test_a_temperature_sharpens_the_draw() -> None:
    objective = electra(1)
    seen = padded(objective)
    proposals = torch.randn(len(seen.labels), objective.model.config.vocab_size)
    cold, _ = replace_tokens(seen, proposals, 1e-6)
    assert torch.equal(cold.flatten()[seen.masked], proposals.argmax(-1))


@pytest.mark.parametrize("name", DETECTORS)
def test_fresh_weights_are_those_of_the_paper(name: str) -> None:
    torch.manual_seed(0)
    shape = {"replaced_token": lambda of: of, "electra": as_electra, "deberta_v3": deberta}[name](
        config(2, initializer_range=0.05)
    )
    for key, weight in ReplacedToken(shape, DEBERTA_V3).state_dict().items():
        if key.endswith("bias"):
            assert (weight == 0).all()
        elif name == "electra" and ("embeddings_project" in key or "dense_prediction" in key):
            limit = (6 / sum(weight.shape)) ** 0.5  # TensorFlow's default
            assert 0.5 * limit < float(weight.abs().max()) <= limit, key
        elif not key.endswith("LayerNorm.weight"):
            assert float(weight.abs().max()) <= 0.1, key
