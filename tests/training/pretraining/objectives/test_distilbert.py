"""DistilBERT pretrained as itself: the published script's losses with transformers' modules, its start, its files.

The script is huggingface/transformers, examples/research_projects/distillation; its formulas are written out here.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.checkpoint import load_into, read_weights, save_checkpoint
from bert.nn.heads import BertForMaskedLM, BertForSequenceClassification, BertHead
from tests.support.bert_reference import assert_same, fill
from tests.support.every_objective import teacher
from tests.support.objectives import batch, config, filled, gradients
from tests.support.pretraining_runs import SMALL, TINY
from training.corpus.shards import Corpus
from training.engine.records import read_lines
from training.pretrain import make_objective, pretrain
from training.pretraining.examples.base import SpecialIds
from training.pretraining.new_model import ModelSettings, new_config
from training.pretraining.objectives.distillation import Distillation, load_teacher
from training.pretraining.pretrain_batch import PretrainBatch
from training.pretraining.settings import DistillationSettings, PretrainSettings

LENGTHS = [9, 24, 5, 12]
LARGE = config(3, num_hidden_layers=12, type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu")
STUDENT = replace(
    LARGE, model_type="distilbert", num_hidden_layers=6, has_segments=False, classifier_dropout=0.2
)
KEPT = [0, 2, 4, 7, 9, 11]


def distillation(student: BertConfig = STUDENT, large: BertConfig = LARGE, **values: Any) -> Distillation:
    objective = Distillation(student, teacher(large), DistillationSettings(teacher="t", **values))
    filled(objective, 1)
    if not student.has_segments:
        forget_segments(objective.model)
    return objective


def forget_segments(model: Any) -> None:
    nn.init.zeros_(model.bert.embeddings.token_type_embeddings.weight)


def in_transformers(model: BertHead, folder: Path) -> Any:
    save_checkpoint(model, folder, "BertForMaskedLM", {})
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return theirs.eval()


def as_published(student: Any, large: Any, padded: PretrainBatch, over: str) -> dict[str, Tensor]:
    """Return the three losses of `Distiller.step` in distiller.py, restrict_ce_to_mask where `over` is masked."""
    inputs = {
        "input_ids": padded.input_ids,
        "attention_mask": padded.real.long(),
        "output_hidden_states": True,
    }
    ours, theirs = student(**inputs), large(**inputs)
    labels = torch.full((padded.input_ids.numel(),), -100).index_copy(0, padded.masked, padded.labels)
    labels = labels.view_as(padded.input_ids)
    compared = labels > -1 if over == "masked" else padded.real
    divergence = nn.KLDivLoss(reduction="batchmean")(
        (ours.logits[compared] / 2).log_softmax(-1), (theirs.logits[compared].detach() / 2).softmax(-1)
    )
    words = nn.CrossEntropyLoss()(ours.logits.flatten(0, 1), labels.flatten())
    last, wanted = ours.hidden_states[-1][padded.real], theirs.hidden_states[-1][padded.real].detach()
    away = nn.CosineEmbeddingLoss()(last, wanted, torch.ones(len(last)))
    return {"soft_mlm": 4 * divergence, "mlm": words, "cosine": away}


@pytest.mark.parametrize("over", ["all", "masked"])
@pytest.mark.parametrize("family", ["distilbert", "roberta"])
def test_losses_and_gradients_are_those_of_the_published_script(
    family: str, over: str, tmp_path: Path
) -> None:
    large, student = LARGE, STUDENT
    if family == "roberta":
        large = replace(LARGE, model_type="roberta", has_segments=False, num_hidden_layers=4)
        student = replace(large, num_hidden_layers=2)
    objective = distillation(student, large, soft_over=over)
    if family == "roberta":
        forget_segments(objective.teacher)
    padded = batch(4, student.vocab_size, LENGTHS)
    padded = replace(padded, segment_ids=torch.zeros_like(padded.segment_ids))
    # RoBERTa finds positions by its ids: no token may be the padding.
    ids = padded.input_ids.masked_fill((padded.input_ids == student.pad_token_id) & padded.real, 5)
    padded = replace(padded, input_ids=ids.masked_fill(~padded.real, student.pad_token_id))
    theirs = in_transformers(objective.model, tmp_path / "student")
    expected = as_published(theirs, in_transformers(objective.teacher, tmp_path / "teacher"), padded, over)
    losses, found = gradients(objective, padded)
    assert objective.weights == {"soft_mlm": 5.0, "mlm": 2.0, "cosine": 1.0}
    for name, loss in expected.items():
        assert losses[name] == pytest.approx(float(loss.detach()), abs=1e-4, rel=1e-5), name
    (5 * expected["soft_mlm"] + 2 * expected["mlm"] + expected["cosine"]).backward()
    named = {
        student.family.own_name(name.removeprefix("model."), "BertForMaskedLM"): g
        for name, g in found.items()
    }
    for name, parameter in theirs.named_parameters():
        # A file of RoBERTa has rows before the first position, and a row of segments that is added to the positions'.
        if family == "distilbert" or ".embeddings." not in name:
            assert_same(named[name], parameter.grad, name, atol=1e-4)


def test_packed_rows_have_the_losses_and_gradients_of_padded_ones() -> None:
    objective = distillation()
    losses, found = gradients(objective, batch(1, STUDENT.vocab_size, LENGTHS))
    packed_losses, packed = gradients(objective, batch(1, STUDENT.vocab_size, LENGTHS, packed=True))
    assert packed_losses == pytest.approx(losses, abs=1e-5, rel=1e-5)
    for name, gradient in found.items():
        assert_same(packed[name], gradient, name, atol=1e-4)


def test_a_student_starts_as_in_the_published_script(tmp_path: Path) -> None:
    """The tensors of extract_distilbert.py, with --vocab_transform."""
    objective = distillation()
    objective.start_from_teacher()
    theirs = in_transformers(objective.model, tmp_path / "student").state_dict()
    large = in_transformers(objective.teacher, tmp_path / "teacher").state_dict()
    parts = {
        "attention.q_lin": "attention.self.query", "attention.k_lin": "attention.self.key",
        "attention.v_lin": "attention.self.value", "attention.out_lin": "attention.output.dense",
        "sa_layer_norm": "attention.output.LayerNorm", "ffn.lin1": "intermediate.dense", "ffn.lin2": "output.dense",
        "output_layer_norm": "output.LayerNorm",
    }  # fmt: skip
    pairs = {
        f"distilbert.transformer.layer.{at}.{ours}": f"bert.encoder.layer.{taken}.{name}"
        for at, taken in enumerate(KEPT)
        for ours, name in parts.items()
    }
    pairs |= {
        f"distilbert.embeddings.{n}": f"bert.embeddings.{n}"
        for n in ("word_embeddings", "position_embeddings", "LayerNorm")
    }
    pairs |= {
        "vocab_transform": "cls.predictions.transform.dense", "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
        "vocab_projector": "cls.predictions.decoder",
    }  # fmt: skip
    checked = 0
    for name, weight in theirs.items():
        module, _, kind = name.rpartition(".")
        assert torch.equal(weight, large[f"{pairs[module]}.{kind}"]), name
        checked += 1
    assert checked == len(theirs) == 6 * 16 + 2 + 2 + 6


def test_what_does_not_fit_is_named() -> None:
    wide = replace(STUDENT, intermediate_size=STUDENT.intermediate_size + 1)
    with pytest.raises(
        ConfigError, match=r"layer.0.intermediate.dense.weight is \(\d+, \d+\) here and \(\d+, \d+\)"
    ):
        distillation(wide).start_from_teacher()
    albert = replace(STUDENT, model_type="albert", num_hidden_groups=1, has_segments=True, type_vocab_size=2)
    with pytest.raises(ConfigError, match="share their weights"):
        distillation(albert).start_from_teacher()


@pytest.mark.parametrize("model_type", ["electra", "deberta-v2", "modernbert"])
def test_a_student_may_be_of_any_family_of_its_teacher(model_type: str) -> None:
    small: dict[str, Any] = {
        "model_type": model_type, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 40, **({"position_buckets": 8} if model_type == "deberta-v2" else {}),
    }  # fmt: skip
    large, student = (
        new_config(ModelSettings(num_hidden_layers=layers, **small), 60, pad_id=0) for layers in (4, 2)
    )
    objective = Distillation(student, teacher(large), DistillationSettings(teacher="t"))
    objective.start_from_teacher()
    theirs = objective.teacher.state_dict()
    for name, weight in objective.model.state_dict().items():
        if "token_type" not in name:  # zero in these families
            assert torch.equal(weight, theirs[name.replace("layer.1.", "layer.3.")]), name
    losses, _ = gradients(objective.eval(), batch(1, 60, LENGTHS))
    packed_losses, _ = gradients(objective, batch(1, 60, LENGTHS, packed=True))
    assert packed_losses == pytest.approx(losses, abs=1e-5, rel=1e-5)


@pytest.fixture(scope="module")
def large(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of four layers, with its tokenizer."""
    tiny: dict[str, Any] = {**TINY, "num_hidden_layers": 4, "intermediate_size": 64}
    shape = BertConfig(vocab_size=Corpus.open(corpus).vocab_size, **tiny)
    model = BertForMaskedLM(shape)
    fill(model, 9)
    folder = tmp_path_factory.mktemp("teacher")
    save_checkpoint(model, folder, "BertForMaskedLM", {})
    shutil.copy(corpus / "vocab.txt", folder)
    return folder


def run_settings(corpus: Path, large: Path, out: Path, **changes: Any) -> PretrainSettings:
    values: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "objective"}
    values |= {"max_steps": 6, "save_every_steps": 3, "distillation": {"teacher": str(large)}, **changes}
    return PretrainSettings(**values, corpus=corpus, output_dir=out, recipe="distilbert")


def test_the_recipe_starts_from_its_teacher_and_is_saved_as_distilbert(
    corpus: Path, large: Path, tmp_path: Path
) -> None:
    settings = run_settings(corpus, large, tmp_path)
    assert settings.distillation and settings.distillation.soft_over == "all"
    found = Corpus.open(corpus)
    objective = make_objective(settings, found, SpecialIds.load(corpus))
    first, last = (
        objective.model.state_dict()[f"bert.encoder.layer.{n}.output.dense.weight"] for n in (0, 1)
    )
    theirs = load_teacher(large).state_dict()
    assert torch.equal(first, theirs["bert.encoder.layer.0.output.dense.weight"])
    assert torch.equal(last, theirs["bert.encoder.layer.3.output.dense.weight"])
    saved = pretrain(settings)
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(saved, output_loading_info=True)
    assert type(model).__name__ == "DistilBertForMaskedLM" and not any(report.values()), report
    fine_tuned = BertForSequenceClassification(BertConfig.read(saved), 2)
    assert {name.split(".")[0] for name in load_into(fine_tuned, saved)} == {"bert", "classifier"}


def test_a_resumed_run_has_the_same_weights_to_the_last_bit(
    corpus: Path, large: Path, tmp_path: Path
) -> None:
    calm = pretrain(run_settings(corpus, large, tmp_path / "calm"))
    shutil.copytree(tmp_path / "calm", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "step-00000006")
    again = pretrain(run_settings(corpus, large, tmp_path / "killed"))
    steps = [line["step"] for line in read_lines(tmp_path / "killed" / "log.jsonl") if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]
    for name, weight in read_weights(calm).items():
        assert torch.equal(weight, read_weights(again)[name]), name


def test_a_recipe_without_a_teacher_says_so(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="teacher"):
        run_settings(corpus, tmp_path, tmp_path, distillation={})
