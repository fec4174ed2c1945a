"""Folders of GLiClass: exported with parity to plain numpy, or refused with what to do.

Scores are compared with those of `gliclass` 0.1.21 where BERT_GLICLASS_PYTHON is the Python of an environment that has it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.bundle import read_bundle
from bert.checkpoint.weights import read_checkpoint
from bert.errors import BertError
from bert.tasks.zero_shot import decode
from model_export.cli import main
from model_export.verify.precision import Fp32
from model_export.verify.texts import texts_file
from tests.support.hub_process import hub_variables, start
from tests.support.local_hub import local_hub
from tests.support.open_classification import logits, write_gliclass

PYTHON = os.environ.get("BERT_GLICLASS_PYTHON", "")
LABELS = [
    *"sport politics travel food music film science war love money health law weather".split(),  # noqa: SIM905
    *"history art religion nature family work school animals games cars fashion URL 食べ物 🙂".split(),  # noqa: SIM905
    *("a question about a bill", "e-mail address", "l'été"),
]  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "first": {"body": "bert", "prompt_first": True},
    "text-first": {"body": "deberta-v2", "layer_wise": True},
    "next-piece": {"body": "modernbert", "prompt_first": True, "embed_class_token": False, "hidden_size": 24},
    "average": {
        "body": "deberta-v2",
        "prompt_first": True,
        "class_token_pooling": "average",
        "use_segment_embeddings": True,
    },
    "average-text-first": {
        "body": "bert",
        "class_token_pooling": "average",
        "embed_class_token": False,
        "use_segment_embeddings": True,
    },
    "mean": {"body": "deberta-v2", "prompt_first": True, "pooling_strategy": "avg"},
    "mean-average": {
        "body": "modernbert",
        "pooling_strategy": "avg",
        "class_token_pooling": "average",
        "normalize_features": True,
    },
    "separator": {
        "body": "bert",
        "prompt_first": True,
        "extract_text_features": True,
        "class_token_pooling": "average",
    },
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"prompt_first": False, "class_token_pooling": "average", "normalize_features": True},
        {"pooling_strategy": "avg", "embed_class_token": False, "use_segment_embeddings": True},
        {"extract_text_features": True, "class_token_pooling": "average", "embed_class_token": False},
    ],
)
def test_an_export_is_the_checkpoint_in_plain_numpy(changed: dict[str, Any], tmp_path: Path) -> None:
    write_gliclass(tmp_path / "m", **changed)
    command = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "fp32"]
    assert main(command) == 0
    manifest = read_bundle(tmp_path / "b").manifest
    assert manifest.parity["largest_difference"] < 1e-4 and manifest.parity["neighbours_difference"] < 1e-5
    assert manifest.task.class_prompt is not None and manifest.task.task == "open_classification"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"architecture_type": "bi-encoder"},
            "architecture_type is 'bi-encoder'; of GLiClass only 'uni-encoder'",
        ),
        ({"architecture_type": "decoder-kv"}, "architecture_type is 'decoder-kv'"),
        ({"scorer_type": "hopfield"}, "scorer_type is 'hopfield'"),
        ({"use_lstm": True}, "use_lstm is True"),
        ({"squeeze_layers": True}, "squeeze_layers is True"),
        ({"encoder_layer_id": 1}, "encoder_layer_id is 1"),
        ({"use_calibrator": True}, "use_calibrator is True"),
        ({"projector_hidden_act": "silu"}, "projector_hidden_act is 'silu'"),
        ({"pooling_strategy": "rms"}, "text_pooling is 'rms'; read are first"),
        ({"class_token_pooling": "max"}, "label_pooling is 'max'"),
        ({"extract_text_features": True, "pooling_strategy": "avg"}, "extracted text only 'first'"),
        ({"encoder_config": {"model_type": "t5"}}, "its body is 't5'; read are bert"),
        ({"encoder_config": None}, "encoder_config .None. must be an object"),
        (
            {"encoder_config": {"model_type": "modernbert"}, "use_segment_embeddings": True},
            "a modernbert has no segments",
        ),
        ({"class_token_index": 5}, "class_token_index 5, and '<<LABEL>>' is .*save tokenizer and model"),
        ({"text_token_index": 5, "extract_text_features": True}, "text_token_index 5, and '<<SEP>>' is"),
        ({"hidden_size": 16}, "text_projector.linear_1.weight' has shape"),
        ({"hidden_size": "x"}, "width is 'x'"),
        ({"normalize_features": 1}, "normalize is 1"),
        ({"vocab_size": 40}, "word_embeddings.weight' has shape"),
        ({"model_type": "extractor"}, "it is a GLiNER2"),
    ],
)
def test_what_is_not_read_is_refused_by_name(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gliclass(tmp_path, **changed)
    with pytest.raises(BertError, match=f"(?s){message}"):
        read_checkpoint(tmp_path)


def test_a_folder_with_another_tokenizer_or_none_is_refused(tmp_path: Path) -> None:
    write_gliclass(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
    file.write_text(json.dumps(content), "utf-8")
    with pytest.raises(BertError, match="prepend_scheme 'first'"):
        read_checkpoint(tmp_path)
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] != "<<SEP>>"]
    file.write_text(json.dumps(content), "utf-8")
    with pytest.raises(BertError, match="no added token '<<SEP>>': save tokenizer and model"):
        read_checkpoint(tmp_path)
    file.unlink()
    with pytest.raises(BertError, match=r"has no tokenizer.json: save tokenizer"):
        read_checkpoint(tmp_path)


def test_8_bits_are_judged_by_the_labels_of_texts(tmp_path: Path) -> None:
    write_gliclass(tmp_path / "m")
    command = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "int8"]
    code = main([*command, "--tolerance-labels", "0.5"])
    assert code == 0
    parity = read_bundle(tmp_path / "b").manifest.parity
    asked = parity["requests"]["labels_of_requests"]  # the best of each text, and each of those that fit
    assert parity["labels"] > 300 and asked > 100 and not asked % 100


@pytest.mark.parametrize("changed", [{}, {"pooling_strategy": "avg", "class_token_pooling": "average"}])
def test_fp16_is_near_the_checkpoint_as_numpy_runs_it(changed: dict[str, Any], tmp_path: Path) -> None:
    write_gliclass(tmp_path / "m", **changed)
    command = ["--checkpoint", str(tmp_path / "m"), "--out", str(tmp_path / "b"), "--precision", "fp16"]
    assert main(command) == 0
    assert read_bundle(tmp_path / "b").manifest.parity["scaled_difference"] < 1e-2


def test_a_model_of_the_hub_is_downloaded_and_exported(tmp_path: Path) -> None:
    write_gliclass(tmp_path / "m")
    write_gliclass(tmp_path / "other", architecture_type="bi-encoder")
    with local_hub() as hub:
        hub.add("org/gliclass", tmp_path / "m")
        hub.add("org/bi", tmp_path / "other")
        variables = hub_variables(hub, tmp_path / "home")
        command = ["--out", str(tmp_path / "b"), "--precision", "fp32", "--checkpoint"]
        process = start(["-m", "model_export.cli", *command, "org/bi"], variables)
        assert (
            "architecture_type is 'bi-encoder'" in process.communicate(timeout=240)[1] and process.returncode
        )
        assert not hub.asked("org/bi/resolve/main/model.safetensors")
        process = start(["-m", "model_export.cli", *command, "org/gliclass"], variables)
        _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert read_bundle(tmp_path / "b").manifest.source["hub"]["repo"] == "org/gliclass"


@pytest.mark.skipif(not PYTHON, reason="BERT_GLICLASS_PYTHON names no Python that has gliclass 0.1.21")
def test_scores_are_those_of_gliclass(tmp_path: Path) -> None:
    """Both orders, both vectors of a label, three of a text, segments: 50 texts with 1, 5 and 30 labels, in two ways."""
    odd = ["", " \n ", "人 与 机 e-mail_x 東京タワー", "Co-op_x!! 🙂 ok", "x", "Die Straße, l'été, naïve"]
    shipped = texts_file()
    texts = [*shipped["texts"][:38], *(row["context"] for row in shipped["questions"][:6]), *odd]
    asked = {"texts": texts, "label_sets": [LABELS[:1], LABELS[:5], LABELS], "kinds": KINDS}
    script = Path(__file__).parents[2] / "support" / "gliclass_models.py"
    command = [PYTHON, "-P", str(script), str(tmp_path)]
    subprocess.run(command, input=json.dumps(asked), text=True, check=True, capture_output=True, timeout=1200)
    assert len(texts) == 50 and len(LABELS) == 30
    spread = []
    for name in KINDS:
        checkpoint = read_checkpoint(tmp_path / name)
        graph = Fp32(checkpoint, ())
        for expected in json.loads((tmp_path / name / "expected.json").read_text("utf-8")):
            labels, several = expected["labels"], expected["way"] == "multi-label"
            if len(labels) == 1 and not several:  # always 1
                continue
            found = logits(checkpoint, graph, texts, labels)
            for each, theirs in zip(found, expected["scores"], strict=True):
                got = decode(each, labels, None, multi_label=several)
                assert dict(got.scores) == pytest.approx(dict(zip(labels, theirs, strict=True)), abs=1e-4)
                assert max(theirs) - dict(zip(labels, theirs, strict=True))[got.label] < 1e-4
                spread += theirs
    assert np.mean([0.02 < score < 0.98 for score in spread]) > 0.3  # the head is not at its ends
