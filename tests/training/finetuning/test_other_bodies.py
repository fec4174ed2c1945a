"""Fine-tuning over bodies that are not BERT's: teachers, long documents in one piece."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert.checkpoint.weights import read_checkpoint
from model_export.reference import Reference
from training.finetune import finetune
from training.finetuning.teacher import Teacher
from training.settings import FinetuneSettings
from training.tasks import task_class

Make = Callable[..., FinetuneSettings]
Maker = Callable[..., Path]
LONG, SENTENCE = 8192, "Ada lived in London . "
TAGS = ["B-PER", "O", "O", "B-LOC", "O"]


@pytest.mark.parametrize(("task", "model_type"), [("ner", "modernbert"), ("classification", "deberta-v2")])
def test_a_teacher_answers_as_its_checkpoint(
    task: str, model_type: str, family_base: Maker, trained: Maker, settings_for: Make
) -> None:
    best = trained(task, base=family_base(model_type), max_steps=3)
    checkpoint = read_checkpoint(best)
    student = task_class(task)(checkpoint.tokenizer, checkpoint.spec)
    teacher = Teacher(best, student, torch.device("cpu"))
    encoding = checkpoint.tokenizer.single(checkpoint.tokenizer.pieces([SENTENCE * 5])[0])
    positions = np.arange(len(encoding) if task == "ner" else 1)
    reference = Reference(checkpoint.config, checkpoint.spec, checkpoint.weights)
    expected = reference.outputs(encoding.ids, encoding.segment_ids, positions)
    ids = torch.tensor(encoding.ids)[None].long()
    with torch.no_grad():
        found = teacher.model(ids, torch.zeros_like(ids), torch.ones_like(ids))
    assert np.allclose(found.numpy().reshape(expected.shape), expected, atol=1e-5)
    finetune(settings_for(task, max_steps=2, teacher={"checkpoint": best}))


def write_documents(folder: Path) -> dict[str, Path]:
    """Write two documents of 1,300 tokens for each task, and two questions about the last sentence."""
    count, text = 260, SENTENCE * 260
    rows = [f"{word} {tag}\n" for word, tag in zip(SENTENCE.split(), TAGS, strict=True)]
    (folder / "ner.conll").write_text("\n".join(["".join(rows * count)] * 2), encoding="utf-8")
    answer = {"text": "London", "answer_start": text.rindex("London")}
    questions = [{"id": str(n), "question": f"Where in {n}?", "answers": [answer]} for n in range(2)]
    content = {"data": [{"title": "t", "paragraphs": [{"context": text, "qas": questions}]}]}
    (folder / "qa.json").write_text(json.dumps(content), encoding="utf-8")
    return {"ner": folder / "ner.conll", "qa": folder / "qa.json"}


@pytest.mark.parametrize("task", ["ner", "qa"])
def test_a_long_document_is_learned_in_one_piece(
    task: str, family_base: Maker, settings_for: Make, tmp_path: Path
) -> None:
    base = family_base("modernbert", max_position_embeddings=LONG, num_hidden_layers=2)
    data = [{"path": write_documents(tmp_path)[task]}]
    settings = settings_for(task, base=base, train=data, dev=data, max_tokens=LONG, batch_size=1, max_steps=2)
    seen: list[int] = []
    features = task_class(task).features

    def noted(self: Any, examples: Any) -> Any:
        found = features(self, examples)
        seen.extend(len(encoding) for feature in found for encoding in feature.encodings)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_class(task), "features", noted)
        best = finetune(settings)
    assert read_checkpoint(best).spec.max_tokens == LONG
    assert seen[:2] and min(seen) > 1200 and len(seen) in (2, 4)


def test_a_class_that_transformers_lacks_is_told(
    family_base: Maker, settings_for: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        best = finetune(settings_for("multiple_choice", base=family_base("deberta"), max_steps=2))
    assert "transformers has no class of deberta for multiple_choice" in caplog.text
    assert read_checkpoint(best).spec.task == "multiple_choice"
