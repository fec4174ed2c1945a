"""Classifiers and taggers of the hub: labels, pairs, cross-encoders and single numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from transformers import AutoModelForSequenceClassification

from bert.bundle import read_bundle
from bert.errors import CheckpointError
from bert.graph_inputs import Packer
from bert.tasks.classification import decode
from bert.tasks.spec import TaskSpec
from model_export.cli import main
from model_export.verify.precision import GraphSession
from model_export.verify.texts import shipped_texts
from tests.support.checkpoints import SPECS, hf_outputs, write_checkpoint
from tests.support.published import (
    IDENTITY,
    classifier,
    read,
)

SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("values", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, ""),
        ({"sbert_ce_default_activation_function": IDENTITY}, ""),
        ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": None}}, "sigmoid"),
        ({"sentence_transformers": {"version": "4.1.0"}, "problem_type": "regression"}, "sigmoid"),
        (
            {
                "sentence_transformers": {"activation_fn": IDENTITY},
                "sbert_ce_default_activation_function": SIGMOID,
            },
            "",
        ),
    ],
)
def test_a_cross_encoder_reads_two_texts(values: dict[str, Any], activation: str, tmp_path: Path) -> None:
    found = read(classifier(tmp_path, ["LABEL_0"], **values))
    assert (found.spec.pair, found.spec.problem_type, found.remarks) == (True, "regression", ())
    assert found.spec.activation == activation


def test_the_settings_file_of_a_cross_encoder_comes_first(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["LABEL_0"], sentence_transformers={"activation_fn": SIGMOID})
    settings = {"model_type": "CrossEncoder", "activation_fn": IDENTITY}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "modules.json").write_text("[]", encoding="utf-8")  # not those of an embedding model
    found = read(folder)
    assert (found.spec.task, found.spec.pair, found.spec.activation) == ("classification", True, "")


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.ReLU", "os.system", "mine.Score"])
def test_a_cross_encoder_with_another_activation_is_refused(name: str, tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["LABEL_0"], sentence_transformers={"activation_fn": name})
    with pytest.raises(
        CheckpointError, match=f"score goes through {name.rpartition('.')[2]}, which is not known"
    ):
        read(folder)


def test_one_number_is_a_sigmoid_unless_it_is_a_regression(tmp_path: Path) -> None:
    plain = read(classifier(tmp_path / "plain", ["LABEL_0"]))
    assert plain.spec.activation == "sigmoid" and "its sigmoid is taken" in plain.remarks[0]
    number = read(classifier(tmp_path / "number", ["LABEL_0"], problem_type="regression"))
    assert (number.spec.activation, number.spec.problem_type) == ("", "regression")
    assert not any("sigmoid" in remark for remark in number.remarks)


def test_several_numbers_of_a_regression_are_given_as_they_are(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "m", ["clarity", "depth"], problem_type="regression")
    out = tmp_path / "b"
    assert main(["--checkpoint", str(folder), "--out", str(out), "--precision", "fp32"]) == 0
    spec = read_bundle(out).manifest.task
    text = shipped_texts(read(folder).tokenizer, spec)[3]
    logits = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).alone([text])[0]
    (result,) = decode(logits.reshape(1, -1), spec)
    wanted = hf_outputs(AutoModelForSequenceClassification.from_pretrained(folder), spec, text).ravel()
    assert dict(result.scores) == pytest.approx(dict(zip(spec.labels, wanted, strict=True)), abs=1e-5)


@pytest.mark.parametrize(
    "labels",
    [
        ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"],
        ["contradiction", "neutral", "entailment"],
        ["entailment", "not_entailment"],
        ["Not Entailment", "Entailment"],
        ["implicazione", "neutro", "contraddizione"],
        ["Widerspruch", "neutral", "Folgerung"],
        ["矛盾", "中立", "蕴含"],
    ],
)
def test_labels_of_inference_mean_two_texts(labels: list[str], tmp_path: Path) -> None:
    folder = classifier(tmp_path, labels)
    found = read(folder)
    assert found.spec.pair and found.spec.labels == tuple(labels)
    assert "two texts are read; --no-pair reads one" in found.remarks[0]
    alone = read(folder, pair=False)
    assert not alone.spec.pair and alone.remarks == ()


def test_any_other_classifier_leaves_it_to_the_request(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["bad", "good"])
    found = read(folder)
    assert found.spec.pair is None and "requests may have either" in found.remarks[0]
    assert TaskSpec.from_dict(found.spec.to_dict()).pair is None
    assert read(folder, pair=True).spec.pair is True and read(folder, pair=False).spec.pair is False


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ({"id2label": {"0": 0, "1": 1}}, ("0", "1")),
        ({"id2label": {"1": "up", "0": "down"}, "label2id": {"up": 0, "down": 1}}, ("down", "up")),
        ({"id2label": None}, ("LABEL_0", "LABEL_1")),
        ({"id2label": None, "num_labels": 2}, ("LABEL_0", "LABEL_1")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_labels_are_those_of_id2label(
    values: dict[str, Any], labels: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(classifier(tmp_path, ["a", "b"], **values)).spec.labels == labels


def test_labels_without_names_are_as_many_as_the_head_has(tmp_path: Path) -> None:
    spec = read(classifier(tmp_path, ["a", "b", "c", "d"], id2label=None)).spec
    assert spec.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")


def test_tags_without_an_outside_are_told(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, replace(SPECS["ner"], labels=("NOUN", "VERB")))
    (tmp_path / "task.json").unlink()
    assert "no label is O: every word belongs to an entity" in read(tmp_path).remarks
