"""The pooling of an embedding model of the hub: exported as its files state it, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bert.bundle import read_bundle
from bert.errors import CheckpointError
from bert.graph_inputs import Packer
from bert.tasks.spec import TaskSpec
from model_export.cli import main
from model_export.verify.precision import GraphSession
from model_export.verify.texts import shipped_texts
from tests.support.checkpoints import SPECS, hf_outputs
from tests.support.published import CLS, MEAN, read, write_embedder


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
        ({"pooling_mode_mean_tokens": False}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_max_tokens": True, **MEAN, "pooling_mode_cls_token": True}, "cls+max+mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"], "include_prompt": True}, "mean"),
        ({"pooling_mode": ["lasttoken", "max"], "embedding_dimension": 32}, "lasttoken+max"),
        ({**MEAN, "pooling_mode": "cls"}, "cls"),
        (
            {"pooling_mode": "mean", "include_prompt": False},
            "mean",
        ),  # without prompts there is nothing to leave out
    ],
)
def test_poolings_that_are_honoured(pooling: dict[str, Any], expected: str, tmp_path: Path) -> None:
    write_embedder(tmp_path, pooling=pooling)
    assert read(tmp_path).spec == TaskSpec("similarity", pooling=expected, max_tokens=128)


@pytest.mark.parametrize(
    ("pooling", "reason"),
    [
        ({}, "1_Pooling/config.json is missing or names no pooling, and modules.json has a module for it"),
        ({"word_embedding_dimension": 32}, "names no pooling"),
        ({"pooling_mode": None}, "names no pooling"),
        ({"pooling_mode": []}, "names no pooling"),
        ({"pooling_mode_cls_token": 1}, r"pooling_mode_cls_token \(1\) must be true or false"),
        ({**MEAN, "pooling_mode_cls_token": "true"}, r"pooling_mode_cls_token \('true'\) must be true or"),
        ({**CLS, "pooling_mode_max_tokens": None}, r"pooling_mode_max_tokens \(None\) must be true or fa"),
        ({**MEAN, "include_prompt": 0}, r"include_prompt \(0\) must be true or false"),
    ],
)
def test_a_pooling_that_is_not_stated_is_refused(
    pooling: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, pooling=pooling)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


def test_a_missing_file_of_the_pooling_is_refused(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json is missing"):
        read(tmp_path)
