"""ALBERT pretrained as itself: losses and gradients of transformers' AlbertForPreTraining, packed rows, its files."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert.config import BertConfig
from bert.nn.checkpoint import load_into, read_weights, save_weights
from bert.nn.heads import BertForPreTraining, BertForSequenceClassification
from tests.support.bert_reference import assert_same
from tests.support.languages import topics, write_corpus
from tests.support.objectives import batch, config, filled, gradients
from tests.support.pretraining_runs import SMALL, TINY
from training.pretrain import pretrain
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.language_models import MaskedLanguageModelWithPairs
from training.pretraining.settings import PretrainSettings

SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2)]
"""Groups of layers, and layers of a group."""
LENGTHS = [9, 24, 5, 12]


def albert(groups: int, inner: int, seed: int = 0) -> Objective:
    """Return the objective around a small ALBERT with a random value for every parameter."""
    shape = config(
        seed, model_type="albert", hidden_size=24, num_attention_heads=3, embedding_size=16, num_hidden_layers=4,
        num_hidden_groups=groups, inner_group_num=inner, hidden_act="gelu_new", type_vocab_size=2, classifier_dropout=0.1,
    )  # fmt: skip
    return filled(MaskedLanguageModelWithPairs(shape, "sop"), seed)


def saved(objective: Objective, folder: Path) -> Path:
    weights = {name: tensor.detach() for name, tensor in objective.model.state_dict().items()}
    save_weights(weights, objective.model.config, folder, objective.architecture, {})
    return folder


def read_by_transformers(folder: Path) -> Any:
    theirs, report = transformers.AlbertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return theirs.eval()


@pytest.mark.parametrize(("groups", "inner"), SHAPES)
def test_losses_and_gradients_are_those_of_transformers(groups: int, inner: int, tmp_path: Path) -> None:
    objective = albert(groups, inner)
    theirs = read_by_transformers(saved(objective, tmp_path))
    padded = batch(3, objective.model.config.vocab_size, LENGTHS)
    labels = torch.full((padded.input_ids.numel(),), -100).index_copy(0, padded.masked, padded.labels)
    expected = theirs(
        input_ids=padded.input_ids,
        token_type_ids=padded.segment_ids,
        attention_mask=padded.real,
        labels=labels.view_as(padded.input_ids),
        sentence_order_label=padded.pair_labels,
    ).loss
    losses, found = gradients(objective, padded)
    assert sum(losses.values()) == pytest.approx(float(expected.detach()), abs=1e-5, rel=1e-5)
    expected.backward()
    family, architecture = objective.model.config.family, objective.architecture
    named = {family.own_name(name.removeprefix("model."), architecture): g for name, g in found.items()}
    their_gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert named.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        assert_same(named[name], gradient, name)


@pytest.mark.parametrize(("groups", "inner"), SHAPES)
def test_packed_rows_have_the_losses_and_gradients_of_padded_ones(groups: int, inner: int) -> None:
    objective = albert(groups, inner, seed=1)
    vocab_size = objective.model.config.vocab_size
    losses, found = gradients(objective, batch(1, vocab_size, LENGTHS))
    packed_losses, packed = gradients(objective, batch(1, vocab_size, LENGTHS, packed=True))
    assert packed_losses == pytest.approx(losses, abs=1e-5)
    for name, gradient in found.items():
        assert_same(packed[name], gradient, name)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    objective = albert(2, 2)
    saved(objective, tmp_path)
    again = BertForPreTraining(BertConfig.read(tmp_path))
    assert load_into(again, tmp_path) == []
    for name, weight in objective.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of three steps of ALBERT's recipe."""
    folder = tmp_path_factory.mktemp("albert")
    corpus = write_corpus(folder / "corpus", 48, topics(30))
    model = {**TINY, "embedding_size": 8, "num_hidden_layers": 4}
    values: dict[str, Any] = {
        **SMALL,
        "objective": "mlm+sop",
        "examples": "sentence_order",
        "max_steps": 3,
        "model": model,
    }
    settings = PretrainSettings(**values, corpus=corpus, output_dir=folder / "run", recipe="albert")
    assert settings.optimizer == "lamb" and not settings.bias_correction
    return pretrain(settings)


def test_a_run_of_the_recipe_is_saved_as_albert(trained: Path) -> None:
    theirs = read_by_transformers(trained)
    assert theirs.config.embedding_size == 8 and theirs.config.num_hidden_groups == 1
    assert theirs.config.hidden_act == "gelu_new"
    layers = [
        name for name in theirs.state_dict() if ".albert_layers." in name and name.endswith("ffn.weight")
    ]
    assert len(layers) == 1


def test_a_run_of_the_recipe_can_be_fine_tuned_and_gone_on_with(trained: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification(BertConfig.read(trained), 2)
    assert load_into(model, trained) == ["classifier.weight", "classifier.bias"]
    corpus = trained.parents[1] / "corpus"
    values: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "model"}
    values |= {"objective": "mlm+sop", "examples": "sentence_order", "max_steps": 1}
    on = pretrain(PretrainSettings(**values, corpus=corpus, output_dir=tmp_path, base=str(trained)))
    read_by_transformers(on)
    assert read_weights(on).keys() == read_weights(trained).keys()
