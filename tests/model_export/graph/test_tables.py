"""Embedding tables in files of their own: the graph answers as before, and equal tables are equal files."""

from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bert.graph_inputs import row_inputs
from bert.packing import pack
from model_export.graph.bert.cpu_ops import CpuOps
from model_export.graph.bert.int8_ops import Int8Ops
from model_export.graph.build import build_graph
from model_export.graph.calibration import Calibration
from model_export.graph.tables import MIN_TABLE_BYTES, separate_tables
from tests.support.checkpoints import SPECS, checkpoint_and_texts, write_checkpoint

WORDS, POSITIONS = (f"bert.embeddings.{kind}_embeddings.weight.npy" for kind in ("word", "position"))


@pytest.mark.parametrize("name", ["classification", "similarity", "fill_mask"])
def test_onnxruntime_alone_opens_the_folder_and_answers_bit_for_bit_as_before(
    name: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "checkpoint", SPECS[name])
    checkpoint, texts = checkpoint_and_texts(tmp_path / "checkpoint")
    whole = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    before = whole.SerializeToString()
    tables = separate_tables(whole)
    assert set(tables) == {WORDS, POSITIONS}
    for file, parts in {"model.onnx": (whole.SerializeToString(),), **tables}.items():
        (tmp_path / file).write_bytes(b"".join(parts))
    sessions = [onnxruntime.InferenceSession(graph) for graph in (before, str(tmp_path / "model.onnx"))]
    encodings = [text.encoding for text in texts]
    packing = pack([len(encoding) for encoding in encodings])
    packed = row_inputs(encodings, packing, [text.positions for text in texts])
    packed["chunk_ids"] = packed["text_ids"]
    feeds = {tensor.name: packed[tensor.name] for tensor in sessions[0].get_inputs()}
    expected, found = (session.run(None, feeds)[0] for session in sessions)
    assert np.array_equal(expected, found)


def test_the_graphs_of_both_precisions_have_the_same_tables(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    config, spec, weights = checkpoint.config, checkpoint.spec, checkpoint.weights
    calibration = Calibration(config, spec, weights, [text.encoding for text in texts[:4]])
    int8_ops = partial(Int8Ops, calibration=calibration)
    fp32, int8 = (separate_tables(build_graph(config, spec, weights, ops)) for ops in (CpuOps, int8_ops))
    assert fp32 == int8 and set(fp32) == {WORDS, POSITIONS}


def test_only_large_tables_that_are_looked_up_leave_the_graph(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["ner"], intermediate_size=1024)
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    graph = build_graph(checkpoint.config, checkpoint.spec, checkpoint.weights, CpuOps)
    separate_tables(graph)
    inside = {tensor.name: len(tensor.raw_data) for tensor in graph.graph.initializer}
    assert inside["bert.embeddings.word_embeddings.weight"] == 0
    assert inside["bert.embeddings.token_type_embeddings.weight"] > 0
    assert max(inside.values()) > MIN_TABLE_BYTES
