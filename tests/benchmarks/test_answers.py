"""The check of answers, and the plain checkpoint that baselines load, against transformers."""

from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.serve.baselines.plain_checkpoint import is_written, write_plain
from benchmarks.serve.load.answers import (
    BaselineTolerance,
    Check,
    Expected,
    Prediction,
    check,
    expected_labels,
    expected_spans,
)
from bert.checkpoint.weights import read_checkpoint
from tests.support.checkpoints import SPECS, write_checkpoint

TEXTS = ["a warm film", "the river", "b"]


def test_equal_answers_pass() -> None:
    found = check([Prediction("a", 0.9), Prediction("b", 0.6)], [Expected("a", 0.9004), Expected("b", 0.6)])
    assert found.wrong_labels == 0 and found.largest_difference == pytest.approx(4e-4)
    assert found.passes(BaselineTolerance())


def test_a_score_that_is_too_far_is_wrong() -> None:
    assert not check([Prediction("a", 0.9)], [Expected("a", 0.902)]).passes(BaselineTolerance())
    assert check([Prediction("a", 0.9)], [Expected("a", 0.902)]).passes(BaselineTolerance(score=0.01))


def test_another_label_is_wrong_unless_some_may_differ() -> None:
    found = Check(answers=20, wrong_labels=1, largest_difference=0.0)
    assert not found.passes(BaselineTolerance()) and found.passes(BaselineTolerance(labels=0.05))
    assert check([Prediction("b", 0.9)], [Expected("a", 0.9)]).wrong_labels == 1


def test_a_missing_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        check([], [Expected("a", 1.0)])


def test_without_a_score_the_best_span_counts() -> None:
    right = [Expected(None, 0.8, span="Warsaw")]
    assert check([Prediction("Warsaw", None)], right).wrong_labels == 0
    assert check([Prediction("Paris", None)], right).wrong_labels == 1
    assert check([Prediction(None, 0.8)], right) == Check(1, 0, 0.0)


def test_transformers_gives_the_expected_labels_from_the_plain_folder(tmp_path: Path) -> None:
    spec = SPECS["classification"]
    write_checkpoint(tmp_path / "made", spec)
    checkpoint = read_checkpoint(tmp_path / "made")
    write_plain(checkpoint, tmp_path / "plain")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "plain")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").eval()
    assert tokenizer.model_max_length == spec.max_tokens
    for text, right in zip(TEXTS, expected_labels(checkpoint, TEXTS), strict=True):
        with torch.no_grad():
            shares = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        assert model.config.id2label[int(shares.argmax())] == right.label
        assert float(shares.max()) == pytest.approx(right.score, abs=1e-5)


def test_a_folder_of_other_weights_is_written_anew(tmp_path: Path) -> None:
    spec = SPECS["classification"]
    write_checkpoint(tmp_path / "one", spec)
    write_checkpoint(tmp_path / "two", spec, hidden_size=64)
    one, two = (read_checkpoint(tmp_path / name) for name in ("one", "two"))
    write_plain(one, tmp_path / "plain")
    assert is_written(one, tmp_path / "plain") and not is_written(two, tmp_path / "plain")
    (tmp_path / "plain/model.onnx").touch()
    write_plain(two, tmp_path / "plain")
    assert is_written(two, tmp_path / "plain") and not (tmp_path / "plain/model.onnx").exists()


def test_a_document_has_a_best_span_even_without_an_answer(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SPECS["qa"])
    context = "the river runs to the sea " * 40
    (found,) = expected_spans(read_checkpoint(tmp_path), [("where", context)])
    assert found.span is not None and found.span in context
    assert found.label in (None, found.span)
