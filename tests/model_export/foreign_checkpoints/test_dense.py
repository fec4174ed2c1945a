"""Dense layers after the pooling: exported as sentence-transformers computes them, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file

from bert.bundle import read_bundle
from bert.errors import CheckpointError
from bert.graph_inputs import Packer
from bert.tasks.spec import DenseLayer
from model_export.cli import main
from model_export.verify.precision import GraphSession
from model_export.verify.texts import shipped_texts
from tests.support.pooling import embedded
from tests.support.published import (
    IDENTITY,
    MEAN,
    MODULES,
    read,
    write_dense,
    write_embedder,
)


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_a_whole_folder_is_embedded_as_sentence_transformers_does(pickled: bool, tmp_path: Path) -> None:
    modules = ["Transformer", "Pooling", "Dense", "Dense"]
    model = write_embedder(tmp_path / "m", modules, pooling={**MEAN, "pooling_mode_cls_token": True})
    first = write_dense(tmp_path / "m" / "2_Dense", 64, 24, pickled=pickled)
    second = write_dense(tmp_path / "m" / "3_Dense", 24, 16, bias=False, activation_function=IDENTITY)
    out = tmp_path / "b"
    assert main(["--checkpoint", str(tmp_path / "m"), "--out", str(out), "--precision", "fp32"]) == 0
    manifest = read_bundle(out).manifest
    assert manifest.task.dense == (DenseLayer(24, "tanh"), DenseLayer(16, "identity"))
    assert not manifest.task.normalize
    assert {"2_Dense/config.json", "3_Dense/model.safetensors"} <= manifest.source["files"].keys()
    texts = shipped_texts(read(tmp_path / "m").tokenizer, manifest.task)[:6]
    found = GraphSession(onnx.load(out / "model.onnx"), Packer("rows"), threads=1).run(texts)
    for text, vector in zip(texts, found, strict=True):
        ids = torch.tensor(text.encoding.ids)[None].long()
        with torch.no_grad():
            tokens = model(input_ids=ids).last_hidden_state
            wanted = embedded(
                tokens,
                torch.ones_like(ids),
                ("cls", "mean"),
                [(first, "tanh"), (second, "identity")],
                normalize=False,
            )
        assert np.abs(vector - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"activation_function": "torch.nn.modules.activation.ReLU"},
            "activation_function is ReLU; exported are",
        ),
        (
            {"out_features": 9},
            r"tensor 'dense.0.weight' has shape \(16, 32\); config and task ask for \(9, 32\)",
        ),
        ({"out_features": "many"}, "out_features \\('many'\\) must be a whole number"),
        ({"out_features": 0}, "out_features \\(0\\) must be at least 1"),
        (
            {"module_input_name": "token_embeddings"},
            "module_input_name is 'token_embeddings'; exported is 'sent",
        ),
        ({"use_residual": True}, "2_Dense/config.json: use_residual is True, which is not known"),
    ],
)
def test_other_dense_layers_are_refused(values: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_embedder(tmp_path, [*MODULES[:2], "Dense"])
    write_dense(tmp_path / "2_Dense", 32, 16, **values)
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (
            {"residual.weight": (16, 32)},
            "2_Dense has the tensor 'residual.weight', which a linear layer lacks",
        ),
        ({"linear.weight": ()}, "2_Dense has no matrix 'linear.weight'"),
        ({"linear.bias": ()}, r"tensor 'dense.0.bias' has shape \(\)"),
    ],
)
def test_other_tensors_of_a_dense_layer_are_refused(
    tensors: dict[str, tuple[int, ...]], reason: str, tmp_path: Path
) -> None:
    write_embedder(tmp_path, [*MODULES[:2], "Dense"])
    state = {
        f"linear.{name}": tensor
        for name, tensor in write_dense(tmp_path / "2_Dense", 32, 16).state_dict().items()
    }
    state |= {name: torch.ones(shape) for name, shape in tensors.items()}
    save_file(state, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        read(tmp_path)
