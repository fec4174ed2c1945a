"""Bases that a run may start from, and those that are refused before the first step."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert.bodies.modern import ModernBody
from bert.config import BertConfig
from bert.errors import ConfigError, TrainingError
from bert.nn.checkpoint import load_into
from bert.nn.heads import BertForMaskedLM
from bert.tokenizer import Tokenizer
from tests.support.checkpoints import SPECS
from tests.support.families import relative
from tests.support.pretraining_runs import SMALL
from training.corpus.shards import Corpus
from training.pretrain import fingerprint, make_objective, pretrain
from training.pretraining.examples.base import SpecialIds
from training.pretraining.examples.stream import ORDER
from training.pretraining.objectives.base import Objective
from training.pretraining.settings import PretrainSettings


@pytest.fixture(scope="module")
def base(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a run of one step."""
    found = pretrain(run_settings(corpus, tmp_path_factory.mktemp("base"), max_steps=1, objective="mlm"))
    assert found is not None
    return found


def run_settings(corpus: Path, out: Path, **changes: Any) -> PretrainSettings:
    values = {**SMALL, "corpus": corpus, "output_dir": out, **changes}
    if "base" in changes:
        values.pop("model")
    return PretrainSettings(**values)


def opened(corpus: Path, base: Path, **changes: Any) -> object:
    settings = run_settings(corpus, base.parent / "unused", base=str(base), **changes)
    found = Corpus.open(corpus)
    return make_objective(settings, found, SpecialIds.load(found.folder))


def test_a_base_of_the_same_pieces_is_taken(corpus: Path, base: Path) -> None:
    assert opened(corpus, base, objective="mlm") is not None


@pytest.mark.parametrize("objective_name", ["mlm", "span"])
def test_a_relative_with_berts_body_goes_on_as_itself_or_a_bert(
    objective_name: str, corpus: Path, tmp_path: Path
) -> None:
    pieces = Corpus.open(corpus).vocab_size
    theirs = relative("distilbert", SPECS["fill_mask"], vocab_size=pieces)
    theirs.save_pretrained(tmp_path / "distilbert")
    masking = {"masking": {"kind": "spans"}} if objective_name == "span" else {}
    objective = opened(corpus, tmp_path / "distilbert", objective=objective_name, **masking)
    assert isinstance(objective, Objective)
    expected = "distilbert" if objective_name == "mlm" else "bert"
    assert objective.model.config.model_type == expected
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            objective.model.eval()(ids), theirs(ids, torch.ones_like(ids)).logits, atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(
    "model_type",
    ["roberta", "distilbert", "electra", "albert", "mpnet", "deberta", "deberta-v2", "modernbert"],
)
def test_another_body_goes_on_as_itself(model_type: str, corpus: Path, tmp_path: Path) -> None:
    pieces = Corpus.open(corpus).vocab_size
    relative(model_type, SPECS["fill_mask"], vocab_size=pieces).save_pretrained(tmp_path / "base")
    settings = run_settings(
        corpus, tmp_path / "run", base=str(tmp_path / "base"), max_steps=2, objective="mlm", packed=True
    )
    saved = pretrain(settings)
    assert saved is not None
    kind = transformers.AutoModelForMaskedLM
    theirs, report = kind.from_pretrained(saved, output_loading_info=True)
    assert theirs.config.model_type == model_type
    assert not any(report.values()), report
    ours, ids = BertForMaskedLM(BertConfig.read(saved)).eval(), torch.arange(5, 12)[None]
    assert load_into(ours, saved) == []
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs.eval()(ids).logits, atol=1e-5, rtol=1e-5)
    if model_type in ("roberta", "distilbert", "electra", "deberta-v2"):
        return
    pairs = "'mlm+nsp' or 'mlm+sop' or " if model_type == "albert" else ""
    known = re.escape(f"the objective 'mlm' or {pairs}'distillation', and not with 'replaced_token'")
    with pytest.raises(ConfigError, match=known):
        opened(corpus, tmp_path / "base", objective="replaced_token")


def test_a_base_whose_ids_mean_other_pieces_is_refused(corpus: Path, base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    file = other / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["w0"], vocabulary["w1"] = vocabulary["w1"], vocabulary["w0"]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prepared with another vocabulary than .*: piece \d+ is "):
        opened(corpus, other)
    file.unlink()
    (other / "tokenizer_config.json").unlink(missing_ok=True)
    assert opened(corpus, other) is not None  # who brings none is believed


def test_longer_examples_than_a_base_has_positions_are_refused(corpus: Path, base: Path) -> None:
    assert BertConfig.read(base).max_position_embeddings == 64
    with pytest.raises(ConfigError, match=r"max_tokens \(80\) must be at most the model's positions \(64\)"):
        opened(corpus, base, max_tokens=80)
    with pytest.raises(ConfigError, match=r"max_tokens \(128\)"):
        opened(corpus, base, phases=[{"max_tokens": 32, "share": 0.5}, {"max_tokens": 128, "share": 0.5}])


def test_a_modernbert_goes_on_with_longer_texts(corpus: Path, tmp_path: Path) -> None:
    """Its positions are no weights: as in the paper, rotations become slower where texts become longer."""
    pieces = Corpus.open(corpus).vocab_size
    theirs = relative("modernbert", SPECS["fill_mask"], vocab_size=pieces)
    theirs.save_pretrained(tmp_path / "base")
    values: dict[str, Any] = {
        **SMALL, "corpus": corpus, "output_dir": tmp_path / "run", "base": str(tmp_path / "base"), "objective": "mlm",
        "model": {"max_position_embeddings": 500, "global_rope_theta": 16_000.0}, "max_tokens": 500,
        "batch_size": 2, "max_steps": 1, "eval_examples": 1,
    }  # fmt: skip
    config = BertConfig.read(pretrain(PretrainSettings(**values)))
    assert isinstance(config.body, ModernBody) and config.body.full_theta == 16_000.0
    assert config.max_position_embeddings == 500
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.0)


def test_another_base_keeps_its_positions(corpus: Path, base: Path) -> None:
    values: dict[str, Any] = {**SMALL, "corpus": corpus, "output_dir": base, "base": str(base)}
    settings = PretrainSettings(**{**values, "model": {"max_position_embeddings": 80}})
    found = Corpus.open(corpus)
    with pytest.raises(
        ConfigError, match=r"'bert' has a shape of its own: leave out model.max_position_embeddings"
    ):
        make_objective(settings, found, SpecialIds.load(found.folder))


def test_what_a_base_lacks_is_told(corpus: Path, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(corpus, base, objective="mlm+nsp")
    assert "lacks" in caplog.text and "cls.seq_relationship" in caplog.text


def test_a_model_of_few_positions_has_a_report_all_the_same(corpus: Path, tmp_path: Path) -> None:
    model = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
    }
    settings = run_settings(corpus, tmp_path / "run", model=model, max_tokens=16, max_steps=1)
    assert pretrain(settings) is not None
    assert (tmp_path / "run" / "report" / "report.md").is_file()


def test_a_run_that_diverged_goes_on_at_another_rate_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    values = {"max_steps": 2, "learning_rate": 1e-3}
    pretrain(run_settings(corpus, tmp_path / "run", **values))
    assert pretrain(
        run_settings(corpus, tmp_path / "run", **{**values, "max_steps": 3, "learning_rate": 5e-4})
    )
    with pytest.raises(TrainingError, match=r"other settings \(weight_decay\)"):
        pretrain(run_settings(corpus, tmp_path / "run", **values, weight_decay=0.5))


def test_another_order_of_examples_is_another_run(corpus: Path, tmp_path: Path) -> None:
    found = fingerprint(run_settings(corpus, tmp_path))
    assert found["order_of_examples"] == ORDER
    assert Tokenizer.load(corpus).vocab_size == Corpus.open(corpus).vocab_size


def test_a_run_that_is_longer_already_is_told(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pretrain(run_settings(corpus, tmp_path / "run", max_steps=3, objective="mlm"))
    assert "longer" not in caplog.text
    pretrain(run_settings(corpus, tmp_path / "run", max_steps=2, objective="mlm"))
    assert "the run is longer already than the 2 steps asked for: nothing is trained" in caplog.text
