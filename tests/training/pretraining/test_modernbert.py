"""ModernBERT's recipe: the loss that transformers has, whole runs, and what other commands make of the checkpoint."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert.bodies.modern import ModernBody
from bert.nn.checkpoint import save_checkpoint
from tests.support.objectives import PAD, examples, filled, without_spans
from tests.support.pretraining_runs import checkpoints, losses, step_of
from training.pretrain import pretrain
from training.pretraining.new_model import ModelSettings, new_config
from training.pretraining.objectives.language_models import MaskedLanguageModel
from training.pretraining.pretrain_batch import collate
from training.pretraining.settings import PretrainSettings

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}

GROWING: dict[str, Any] = {
    "ramp_from": 2, "ramp_share": 0.5, "keep_checkpoints": 3,
    "phases": [{"max_tokens": 64, "share": 0.5}, {"max_tokens": 160, "share": 0.5}],
}  # fmt: skip


def default_run(corpus: Path, out: Path, **changes: Any) -> PretrainSettings:
    """Return settings of a run that names no recipe, objective, examples, masking or base."""
    values: dict[str, Any] = {
        "corpus": corpus, "output_dir": out, "model": SMALL, "max_tokens": 160, "batch_size": 4, "microbatch_size": 2,
        "max_steps": 6, "save_every_steps": 2, "eval_every_steps": 0, "eval_examples": 4, "threads": 1, "device": "cpu",
    }  # fmt: skip
    return PretrainSettings(**{**values, **changes})


@pytest.fixture(scope="module")
def calm(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose batch and texts grow, with a checkpoint every two steps."""
    out = tmp_path_factory.mktemp("calm") / "run"
    pretrain(default_run(corpus, out, **GROWING))
    return out


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(
    ("lengths", "window"), [([5, 40, 90, 23, 130], 8), ([300, 129, 130, 131], 128), ([1100, 30], 128)]
)
def test_packed_rows_have_the_loss_of_transformers(
    lengths: list[int], window: int, biases: bool, tmp_path: Path
) -> None:
    """Windows and positions are counted inside each text, which transformers reads alone."""
    config = new_config(ModelSettings(model_type="modernbert", local_attention=window, **SMALL), 60, PAD)
    assert isinstance(config.body, ModernBody)
    named = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
    values: dict[str, Any] = {**dict.fromkeys(named, biases), "decoder_bias": not biases}
    body = replace(config.body, **values)
    ours = filled(MaskedLanguageModel(replace(config, body=body)), 1)
    save_checkpoint(ours.model, tmp_path, ours.architecture, {})
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert not any(report.values()), report
    texts = without_spans(examples(3, 60, lengths, pairs=False))
    expected = 0.0
    for text in texts:
        labels = torch.full((1, len(text.ids)), -100)
        labels[0, text.positions] = torch.from_numpy(text.labels).long()
        ids = torch.from_numpy(text.ids).long()[None]
        with torch.no_grad():
            found = theirs.eval()(ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        expected += float(found) * len(text.labels)
    for packed in (True, False):
        with torch.no_grad():
            loss = ours(collate(texts, PAD, max(lengths) + 50, packed))["mlm"]
        assert float(loss.total) == pytest.approx(expected, rel=2e-5)


def test_a_run_by_default_is_a_modernbert_with_scores_and_a_report(corpus: Path, tmp_path: Path) -> None:
    saved = pretrain(default_run(corpus, tmp_path / "run"))
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(saved, output_loading_info=True)
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert not any(report.values()), report
    assert theirs.config.vocab_size == 64  # 53 pieces, on to a multiple of 64
    assert theirs.config.classifier_pooling == "mean"
    assert transformers.AutoTokenizer.from_pretrained(saved)("w1 w2")["input_ids"]
    made = json.loads((saved / "pretrain.json").read_text(encoding="utf-8"))
    assert made["settings"]["recipe"] == "modernbert"
    assert made["scores"]["mlm_loss"] > 0
    assert (tmp_path / "run/report/report.md").is_file()


@pytest.mark.parametrize("saved_step", [2, 4])
def test_a_killed_run_goes_on_to_the_same_bit(
    calm: Path, corpus: Path, tmp_path: Path, saved_step: int
) -> None:
    out = Path(shutil.copytree(calm, tmp_path / "run"))
    for folder in checkpoints(out):
        if step_of(folder) > saved_step:
            shutil.rmtree(folder)
    saved = pretrain(default_run(corpus, out, **GROWING))
    assert losses(out) == losses(calm)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (saved, calm / "model")]
    assert weights[0] == weights[1]
