"""Embeddings of exported graphs, packed among neighbours, against poolings and dense layers in torch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bert.checkpoint.weights import Checkpoint
from bert.graph_inputs import Packer
from bert.tasks.spec import POOLINGS, DenseLayer, TaskSpec
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.cuda_ops import CudaOps
from model_export.graph.build import build_graph
from model_export.reference import Reference
from model_export.verify.fp16_reference import run_flat
from model_export.verify.precision import GraphSession, Int8
from model_export.verify.texts import EncodedText
from tests.support.checkpoints import SPECS, checkpoint_and_texts, random_text, write_checkpoint
from tests.support.pooling import embedded

COMBINATIONS = [
    *((name,) for name in POOLINGS),
    ("cls", "mean"),
    ("mean", "lasttoken", "cls", "max"),
    ("mean", "mean_sqrt_len_tokens", "weightedmean"),
    POOLINGS,
]
WIDTH = 32


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Checkpoint, list[EncodedText]]:
    folder = tmp_path_factory.mktemp("embedder")
    model = write_checkpoint(folder, SPECS["similarity"])
    checkpoint, texts = checkpoint_and_texts(folder)
    lengths = (2, 3, 9, 128, 17, 2, 64, 127)
    return model, checkpoint, [*texts[:6], *(random_text(checkpoint.spec, n, seed=n) for n in lengths)]


def layers(width: int, *chosen: tuple[int, str]) -> list[tuple[torch.nn.Linear, str]]:
    """Return random linear layers: (numbers that come out, activation)."""
    torch.manual_seed(1)
    found = []
    for out, activation in chosen:
        found.append((torch.nn.Linear(width, out), activation))
        width = out
    return found


def with_spec(checkpoint: Checkpoint, spec: TaskSpec, dense: list[tuple[torch.nn.Linear, str]]) -> Checkpoint:
    weights = dict(checkpoint.weights)
    for number, (linear, _) in enumerate(dense):
        weights[f"dense.{number}.weight"] = linear.weight.detach().numpy()
        weights[f"dense.{number}.bias"] = linear.bias.detach().numpy()
    described = tuple(DenseLayer(linear.out_features, activation) for linear, activation in dense)
    return replace(checkpoint, spec=replace(spec, dense=described), weights=weights)


def expected(
    model: Any, texts: list[EncodedText], spec: TaskSpec, dense: list[tuple[torch.nn.Linear, str]]
) -> np.ndarray[Any, Any]:
    """Return the embeddings (N, E) of one padded batch in torch."""
    longest = max(map(len, texts))
    ids, mask = torch.zeros(2, len(texts), longest, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text.encoding.ids)
        mask[row, : len(text)] = 1
    with torch.no_grad():
        tokens = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return embedded(tokens, mask, spec.poolings, dense, normalize=spec.normalize).numpy()


def single(texts: list[EncodedText]) -> list[EncodedText]:
    return [text for text in texts if not text.encoding.segment_ids.any()]


@pytest.mark.parametrize(
    ("modes", "normalize"),
    [*((modes, False) for modes in COMBINATIONS), *((modes, True) for modes in (("mean",), ("cls", "mean")))],
)
def test_every_pooling_is_that_of_torch(modes: tuple[str, ...], normalize: bool, theirs: Any) -> None:
    model, checkpoint, texts = theirs
    spec = replace(checkpoint.spec, pooling="+".join(modes), normalize=normalize)
    session = GraphSession(
        build_graph(checkpoint.config, spec, checkpoint.weights, CpuOps), Packer("rows"), threads=1
    )
    wanted = expected(model, texts, spec, [])
    tolerance = 1e-5 * max(1, np.abs(wanted).max())
    alone, packed = np.concatenate(session.alone(texts)), np.concatenate(session.run(texts))
    assert np.abs(alone - wanted).max() < tolerance
    assert np.abs(packed - wanted).max() < tolerance
    reference = Reference(checkpoint.config, spec, checkpoint.weights)
    own = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]
    assert np.abs(np.concatenate(own) - wanted).max() < tolerance
    half = np.concatenate(run_flat(build_graph(checkpoint.config, spec, checkpoint.weights, CudaOps), texts))
    assert np.abs(half - wanted).max() < 2e-2 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(
    ("modes", "chosen", "normalize"),
    [
        (("mean",), [(24, "tanh")], False),
        (("cls",), [(40, "identity")], True),
        (("cls", "max"), [(24, "tanh"), (8, "identity")], True),
    ],
)
def test_dense_layers_follow_the_pooling(
    modes: tuple[str, ...], chosen: list[tuple[int, str]], normalize: bool, theirs: Any
) -> None:
    model, checkpoint, texts = theirs
    dense = layers(WIDTH * len(modes), *chosen)
    spec = replace(checkpoint.spec, pooling="+".join(modes), normalize=normalize)
    ours = with_spec(checkpoint, spec, dense)
    graph = build_graph(ours.config, ours.spec, ours.weights, CpuOps)
    assert graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value == chosen[-1][0]
    packed = np.concatenate(GraphSession(graph, Packer("rows"), threads=1).run(texts))
    wanted = expected(model, texts, ours.spec, dense)
    assert np.abs(packed - wanted).max() < 1e-5
    reference = Reference(ours.config, ours.spec, ours.weights)
    own = [reference.outputs(t.encoding.ids, t.encoding.segment_ids, t.positions) for t in texts]
    assert np.abs(np.concatenate(own) - wanted).max() < 1e-5


@pytest.mark.parametrize("modes", [("max",), ("weightedmean", "lasttoken")], ids="+".join)
def test_eight_bits_see_no_neighbours_either(modes: tuple[str, ...], theirs: Any) -> None:
    model, checkpoint, texts = theirs
    dense = layers(WIDTH * len(modes), (16, "tanh"))
    ours = with_spec(checkpoint, replace(checkpoint.spec, pooling="+".join(modes)), dense)
    exported = Int8(ours, texts)
    alone, packed = np.concatenate(exported.alone(texts)), np.concatenate(exported.packed(texts))
    assert np.abs(alone - packed).max() < 1e-3
    assert np.abs(packed - expected(model, texts, ours.spec, dense)).max() < 0.1
