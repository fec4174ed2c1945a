"""Labels of requests, by which an 8-bit model of natural language inference is judged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert.errors import ParityError
from bert.tasks.spec import TaskSpec
from model_export.verify import verified_graph
from model_export.verify.agreement import Changes
from model_export.verify.parity import Tolerance
from model_export.verify.request_labels import LABELS, TEXTS, changes_of, labelled_texts
from model_export.verify.verified_graph import ExportContext, build, prove
from tests.support.checkpoints import checkpoint_and_texts, write_checkpoint
from tests.support.tiny import tiny_tokenizer

SPEC = TaskSpec("classification", ("contradiction", "neutral", "entailment"), pair=True, max_tokens=64)


def test_each_text_is_asked_about_each_label() -> None:
    tokenizer = tiny_tokenizer()
    found = labelled_texts(tokenizer, SPEC)
    assert len(found) == TEXTS * len(LABELS)
    last = tokenizer.decode(found[1].encoding.ids[found[1].encoding.sequence_ids == 1].tolist())
    assert last.replace(" ", "") == "thisexampleisbusiness."
    assert labelled_texts(tokenizer, replace(SPEC, labels=("a", "b", "c"))) == []
    assert labelled_texts(tokenizer, replace(SPEC, max_tokens=16)) == []


def test_the_best_label_and_each_by_itself_are_decisions() -> None:
    before = [np.array([[0.0, 9.0, float(number % 3)]], np.float32) for number in range(2 * len(LABELS))]
    assert changes_of(SPEC, before, before).to_dict()["changed_labels_of_requests"] == 0
    after = [each.copy() for each in before]
    after[0][0, 2] = 5.0  # held by nothing and no best one: now both
    changes = changes_of(SPEC, before, after)
    assert (changes.count, changes.changed) == (2 * (1 + len(LABELS)), 2)


def test_a_graph_that_changes_them_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, SPEC)
    checkpoint, _ = checkpoint_and_texts(tmp_path)
    context = ExportContext(checkpoint)
    graph = build(context, "int8")
    tolerance = Tolerance.of("int8", same_labels=0.5)
    proof = prove(context, graph, tolerance).parity["requests"]
    assert proof["labels_of_requests"] == TEXTS * (1 + len(LABELS))
    monkeypatch.setattr(verified_graph, "changes_of", lambda *_: Changes("labels_of_requests", 900, 600))
    with pytest.raises(ParityError, match="600 of 900 labels_of_requests differ"):
        prove(context, graph, tolerance)
