"""Whole runs of the recipes electra and deberta_v3: what is saved, what reads it, and how a run goes on from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bert.checkpoint.description import Stated
from bert.checkpoint.weights import read_checkpoint
from bert.config import BertConfig
from bert.errors import CheckpointError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForMaskedLM, BertForSequenceClassification
from tests.support.checkpoints import SPECS
from tests.support.families import relative
from tests.support.pretraining_runs import SMALL, TINY
from training.corpus.shards import Corpus
from training.engine.records import read_lines
from training.pretrain import make_objective, pretrain
from training.pretraining.examples.base import SpecialIds
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.replaced_token import ReplacedToken
from training.pretraining.settings import PretrainSettings

SHAPES: dict[str, dict[str, Any]] = {
    "electra": {**TINY, "embedding_size": 12},
    "deberta_v3": {**TINY, "position_buckets": 16},
}
CLASSES = {"electra": "ElectraForPreTraining", "deberta_v3": "DebertaV2Model"}


def run_settings(corpus: Path, out: Path, recipe: str, **changes: Any) -> PretrainSettings:
    values = {key: value for key, value in SMALL.items() if key not in ("objective", "model")}
    shape = {} if "base" in changes else {"model": SHAPES[recipe]}
    given = {"corpus": corpus, "output_dir": out, "recipe": recipe, "max_steps": 4, "eval_examples": 40}
    return PretrainSettings(**{**values, **given, **shape, **changes})


@pytest.fixture(scope="module", params=["electra", "deberta_v3"])
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / str(request.param)
    pretrain(run_settings(corpus, out, request.param))
    return out


def make(corpus: Path, settings: PretrainSettings) -> Objective:
    found = Corpus.open(corpus)
    return make_objective(settings, found, SpecialIds.load(found.folder))


def test_transformers_loads_both_models(run: Path) -> None:
    name = CLASSES[run.name]
    model, report = getattr(transformers, name).from_pretrained(run / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert all(left.startswith("mask_predictions.") for left in report["unexpected_keys"])
    assert bool(report["unexpected_keys"]) == (run.name == "deberta_v3")
    stated = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert stated["architectures"] == [name]
    generator, report = transformers.AutoModelForMaskedLM.from_pretrained(
        run / "model" / "generator", output_loading_info=True
    )
    assert not any(report.values()), report
    assert generator.config.model_type == model.config.model_type
    ids = torch.arange(5, 12)[None]
    ours = BertForMaskedLM(BertConfig.read(run / "model" / "generator")).eval()
    assert load_into(ours, run / "model" / "generator") == []
    with torch.no_grad():
        theirs = generator.eval()(ids, torch.ones_like(ids)).logits
        torch.testing.assert_close(ours(ids), theirs, atol=1e-5, rtol=1e-5)


def test_the_saved_embeddings_are_the_sums_of_the_last_save(run: Path) -> None:
    newest = max((run / "checkpoints").glob("step-*"))
    trained = load_file(newest / "weights.safetensors")
    name, prefix = "bert.embeddings.word_embeddings.weight", "electra"
    expected = trained[f"model.{name}"]
    if run.name == "deberta_v3":
        assert expected.any()
        expected, prefix = expected + trained[f"generator.{name}"], "deberta"
    saved = load_file(run / "model" / "model.safetensors")
    assert torch.equal(saved[name.replace("bert", prefix, 1)], expected)


def test_held_out_text_is_scored_and_the_recipe_reported(run: Path) -> None:
    scores = [line["held_out"] for line in read_lines(run / "log.jsonl") if "held_out" in line]
    assert scores[-1]["mlm_loss"] > 0
    report = json.loads((run / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["settings"]["recipe"] == run.name


def test_the_discriminator_is_fine_tuned_and_exported_but_fills_no_masks(run: Path, tmp_path: Path) -> None:
    folder = run / "model"
    tuned = BertForSequenceClassification(BertConfig.read(folder), 2)
    assert not [
        name for name in load_into(tuned, folder) if "pooler" not in name and "classifier" not in name
    ]
    assert read_checkpoint(folder, stated=Stated(pooling="mean")).spec.task == "similarity"
    assert read_checkpoint(folder / "generator").spec.task == "fill_mask"
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    values = json.loads((other / "config.json").read_text(encoding="utf-8"))
    values["architectures"] = [values["architectures"][0].replace("V2Model", "V2ForMaskedLM")]
    (other / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"a fill_mask model needs.* trained to find replaced pieces, and to fill no"
    ):
        read_checkpoint(other)


@pytest.mark.parametrize("recipe", ["electra", "deberta_v3"])
def test_a_run_goes_on_from_another_with_both_models(recipe: str, corpus: Path, tmp_path: Path) -> None:
    first = run_settings(corpus, tmp_path / "first", recipe)
    base = pretrain(first)
    again = make(corpus, run_settings(corpus, tmp_path / "second", recipe, base=str(base)))
    assert isinstance(again, ReplacedToken)
    saved = {f"model/{name}": x for name, x in load_file(base / "model.safetensors").items()}
    assert again.model.config.model_type == BertConfig.read(base).model_type
    beside = load_file(base / "generator" / "model.safetensors")
    weights = dict(again.named_parameters())
    family = again.model.config.family
    found = {
        f"model/{family.own_name(name, again.architecture)}": x
        for name, x in again.model_weights(weights).items()
    }
    for name, tensor in saved.items():
        torch.testing.assert_close(found[name].detach(), tensor, atol=1e-7, rtol=1e-6)
    for name, parameter in again.generator.named_parameters():
        own = again.generator.config.family.own_name(name, "BertForMaskedLM")
        if own in beside:
            assert torch.equal(parameter.detach(), beside[own]), own
    assert pretrain(run_settings(corpus, tmp_path / "second", recipe, base=str(base), max_steps=1))


def test_an_electra_of_transformers_goes_on(corpus: Path, tmp_path: Path) -> None:
    generator = relative("electra", SPECS["fill_mask"], vocab_size=Corpus.open(corpus).vocab_size)
    generator.save_pretrained(tmp_path / "generator")
    shape = {**generator.config.to_dict(), "hidden_size": 64, "intermediate_size": 96}
    theirs = transformers.ElectraForPreTraining(transformers.ElectraConfig(**shape)).eval()
    theirs.electra.embeddings.load_state_dict(generator.electra.embeddings.state_dict())
    theirs.save_pretrained(tmp_path)
    objective = make(corpus, run_settings(corpus, tmp_path / "run", "electra", base=str(tmp_path)))
    assert isinstance(objective, ReplacedToken)
    ids = torch.arange(5, 12)[None]
    objective.eval()
    with torch.no_grad():
        for ours, logits in (
            (objective.model, theirs(ids).logits),
            (objective.generator, generator(ids).logits),
        ):
            torch.testing.assert_close(ours(ids), logits, atol=1e-5, rtol=1e-5)


def test_a_generator_that_is_missing_is_told(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = pretrain(run_settings(corpus, tmp_path / "first", "electra", max_steps=1))
    (base / "generator" / "model.safetensors").unlink()
    make(corpus, run_settings(corpus, tmp_path / "second", "electra", base=str(base)))
    assert "lacks generator/: what is missing starts from fresh weights" in caplog.text


def test_a_bert_stays_one_beside_an_electra(corpus: Path, tmp_path: Path) -> None:
    settings = run_settings(corpus, tmp_path / "run", "electra", model={**TINY, "model_type": "bert"})
    assert pretrain(settings)
    assert BertConfig.read(tmp_path / "run" / "model").model_type == "bert"
    assert BertConfig.read(tmp_path / "run" / "model" / "generator").model_type == "electra"
