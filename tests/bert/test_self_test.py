"""The texts that a bundle asks itself, and how far its answers are from those of export."""

import json

import numpy as np
import pytest

from bert.errors import BundleError
from bert.self_test import SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from tests.support.tiny import SPECS, tiny_tokenizer

ANSWERS = [np.array([[1.0, -2.0]], np.float32), np.array([[0.123456789, 3.0]], np.float32)]
TEST = SelfTest((("a film",), ("the film was dull",)), {"model.onnx": ANSWERS}, {"model.onnx": 0.01}, "avx2")


def test_it_is_read_as_it_was_written() -> None:
    read = SelfTest.parse(TEST.to_json())
    assert read.texts == TEST.texts and read.instructions == "avx2"
    assert read.relative_error("model.onnx", ANSWERS) < 1e-7


def test_the_error_is_a_share_of_all_scores_together() -> None:
    moved = [scores * np.float32(1.5) for scores in ANSWERS]
    assert TEST.relative_error("model.onnx", moved) == pytest.approx(0.5)


def test_answers_of_another_shape_or_graph_are_refused() -> None:
    with pytest.raises(BundleError, match=r"scores of shapes .* expected; export the checkpoint again"):
        TEST.relative_error("model.onnx", ANSWERS[:1])
    with pytest.raises(BundleError, match=r"no answers of fallback.onnx"):
        TEST.relative_error("fallback.onnx", ANSWERS)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", json.dumps({"texts": 3}).encode()])
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"self_test.json is damaged .* export the checkpoint again"):
        SelfTest.parse(content)


@pytest.mark.parametrize("name", SPECS)
def test_each_task_reads_the_texts_within_its_limit(name: str) -> None:
    spec, tokenizer = SPECS[name], tiny_tokenizer()
    text = "the film was warm and funny and not dull " * 8
    texts = [("who met angela", text)] if spec.task == "qa" or spec.pair else [(text,)]
    (encoding,) = encode(texts, tokenizer, spec)
    assert 10 < len(encoding) <= spec.max_tokens


def test_of_masks_shares_are_compared_without_ids() -> None:
    best = np.array([[[7.0, 3.0], [0.6, 0.3]]], np.float32)
    (shares,) = TASKS["fill_mask"].self_test_scores([best])
    assert shares.tolist() == [[pytest.approx(0.6), pytest.approx(0.3)]]
    spec: TaskSpec = SPECS["mood"]
    assert TASKS[spec.task].self_test_scores([best])[0] is best


def test_a_mask_is_hidden_where_masks_are_filled() -> None:
    tokenizer: Tokenizer = tiny_tokenizer()
    (encoding,) = encode([("the film was warm",)], tokenizer, SPECS["gaps"])
    assert tokenizer.mask_id in encoding.ids.tolist()
