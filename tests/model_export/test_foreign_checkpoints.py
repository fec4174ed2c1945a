"""Checkpoints of the hub that say more than a graph would hold, or less than it needs: honoured, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bert.bundle import read_bundle
from bert.checkpoint.weights import Checkpoint, Stated, read_checkpoint
from bert.errors import CheckpointError
from bert.graph_inputs import Packer
from bert.tasks.spec import TaskSpec
from model_export.cli import main
from model_export.verify.precision import GraphSession
from model_export.verify.texts import shipped_texts
from tests.support.checkpoints import SPECS, hf_outputs, write_checkpoint

MODULES = ["Transformer", "Pooling", "Normalize"]
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write_embedder(folder: Path, modules: list[str] = MODULES, **files: Any) -> Any:
    """Write a folder as sentence-transformers does; `files` by name without ending, 1_Pooling as `pooling`."""
    model = write_checkpoint(folder, SPECS["similarity"])
    (folder / "task.json").unlink()
    listed = [
        {"idx": n, "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(modules)
    ]
    (folder / "1_Pooling").mkdir()
    contents = {"modules": listed, "1_Pooling/config": files.pop("pooling", MEAN), **files}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return model


def read(folder: Path, **stated: Any) -> Checkpoint:
    return read_checkpoint(folder, stated=Stated(**stated))


def test_a_pooling_by_cls_is_exported_as_such(tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "m", pooling=CLS, sentence_bert_config={"max_seq_length": 64})
    out = tmp_path / "b"
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", str(out), "--precision", "fp32"]) == 0
    spec = read_bundle(out).manifest.task
    assert (spec.pooling, spec.max_tokens) == ("cls", 64)
    text = shipped_texts(read(tmp_path / "m").tokenizer, spec)[3]
    found = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).alone([text])[0]
    assert np.abs(found - hf_outputs(model, SPECS["cls"], text)).max() < 1e-5


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),  # of length 1 the two are the same
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_poolings_that_are_honoured(pooling: dict[str, Any], expected: str, tmp_path: Path) -> None:
    write_embedder(tmp_path, MODULES[:2], pooling=pooling)
    assert read(tmp_path).spec == TaskSpec("similarity", pooling=expected, max_tokens=128)


@pytest.mark.parametrize(
    ("modules", "files", "reason"),
    [
        (
            [*MODULES[:2], "Dense"],
            {},
            r"modules.json has a module 'Dense' \(2_Dense\), which is not exported",
        ),
        (["Transformer"], {}, "modules.json names no Pooling"),
        (["WordEmbeddings", "Pooling"], {}, "has a module 'WordEmbeddings'"),
        (
            MODULES,
            {"pooling": {"pooling_mode_max_tokens": True}},
            "1_Pooling/config.json: the pooling is max_tokens",
        ),
        (
            MODULES,
            {"pooling": {**MEAN, "pooling_mode_cls_token": True}},
            "is cls_token and mean_tokens; exported are",
        ),
        (MODULES, {"pooling": {}}, "the pooling is not stated"),
        (
            MODULES,
            {"sentence_bert_config": {"max_seq_length": 512}},
            "max_seq_length is 512, and the model has 128 positions",
        ),
        (
            MODULES,
            {"config_sentence_transformers": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}},
            "default_prompt_name is 'q', and the service puts no prompt before a text",
        ),
        (
            MODULES[:2],
            {"config_sentence_transformers": {"similarity_fn_name": "dot"}},
            "similarity_fn_name is 'dot', and the service compares by cosine",
        ),
    ],
)
def test_what_would_give_other_embeddings_is_refused(
    modules: list[str], files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, modules, **files)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


def test_lower_case_that_the_tokenizer_does_not_make_is_refused(tmp_path: Path) -> None:
    lower = {"do_lower_case": True}
    write_embedder(tmp_path, sentence_bert_config=lower, tokenizer_config=lower)
    assert read(tmp_path).spec.pooling == "mean"
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="do_lower_case is true, and the tokenizer tells capitals"):
        read(tmp_path)


def test_prompts_that_a_caller_sends_are_told(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}, "similarity_fn_name": "dot"}
    write_embedder(tmp_path, config_sentence_transformers=prompts)
    assert read(tmp_path).remarks == ("texts have to be sent with their prompt: {'query': 'query: '}",)


def test_task_json_and_modules_json_have_to_agree(tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=CLS)
    SPECS["similarity"].write(tmp_path)
    with pytest.raises(CheckpointError, match=r"task\.json has pooling 'mean', and .*modules\.json 'cls'"):
        read(tmp_path)
    SPECS["cls"].write(tmp_path)
    assert read(tmp_path).spec == SPECS["cls"]


def test_an_encoder_that_says_nothing_of_pooling(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["similarity"])
    (tmp_path / "task.json").unlink()
    found = read(tmp_path)
    assert found.spec.pooling == "mean" and "--pooling cls takes [CLS]" in found.remarks[0]
    assert read(tmp_path, pooling="cls").spec.pooling == "cls"
    assert read(tmp_path, pooling="mean").remarks == ()
    with pytest.raises(CheckpointError, match="pair is said of classification, and the task is similarity"):
        read(tmp_path, pair=True)


def classifier(folder: Path, labels: list[str], **values: Any) -> Path:
    """Write a classifier as the hub has them."""
    spec = TaskSpec("classification", tuple(labels), max_tokens=128)
    write_checkpoint(folder, spec)
    (folder / "task.json").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": {str(n): label for n, label in enumerate(labels)}, **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_a_cross_encoder_reads_two_texts(values: dict[str, Any], tmp_path: Path) -> None:
    found = read(classifier(tmp_path, ["LABEL_0"], **values))
    assert (found.spec.pair, found.spec.problem_type, found.remarks) == (True, "regression", ())


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Sigmoid", None])
def test_a_cross_encoder_with_another_score_is_refused(activation: str | None, tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["LABEL_0"], sentence_transformers={"activation_fn": activation})
    with pytest.raises(
        CheckpointError, match="score goes through Sigmoid, and the service gives the number before"
    ):
        read(folder)


def test_labels_of_two_texts_want_a_word_from_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = classifier(tmp_path / "m", ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"])
    arguments = ["--checkpoint", str(folder), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    assert main(arguments) == 1
    assert "the label 'ENTAILMENT' is one of two texts" in capsys.readouterr().err
    assert main([*arguments, "--pair"]) == 0
    assert read_bundle(tmp_path / "b").manifest.task.pair
    assert not read(folder, pair=False).spec.pair


def test_any_other_classifier_is_taken_to_read_one_text(tmp_path: Path) -> None:
    folder = classifier(tmp_path, ["bad", "good"])
    found = read(folder)
    assert not found.spec.pair and "--pair takes two" in found.remarks[0]
    assert read(folder, pair=True).spec.pair
    SPECS["pair"].write(folder)
    with pytest.raises(
        CheckpointError, match=r"pair is True by the checkpoint's own files, and False was asked for"
    ):
        read(folder, pair=False)


def test_the_best_checkpoint_of_a_run_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    write_checkpoint(run / "best", SPECS["classification"])
    (run / "checkpoints").mkdir()
    assert main(["--checkpoint", str(run), "--out", str(tmp_path / "b"), "--precision", "fp32"]) == 0
    assert f"{run} is the folder of a run; {run / 'best'} is exported" in capsys.readouterr().err
