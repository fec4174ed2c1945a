"""The loss on held-out data is that of a forward pass of its own, for every task."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bert.data.examples import TextExample
from tests.support.finetuning import FILES
from training.finetuning.scores import HeldOutLoss, RecordedLogits
from training.finetuning.trainer import FinetuneTrainer
from training.settings import EmbeddingSettings
from training.tasks.base import collate

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        *((task, {}) for task in FILES),
        ("classification", {"class_weights": {"negative": 3}}),
        ("classification", {"long_texts": "windows", "max_tokens": 8}),
        ("qa", {"max_tokens": 40}),
    ],
)
def test_it_is_the_mean_loss_of_its_targets(
    task: str, changes: dict[str, Any], begin: Callable[..., FinetuneTrainer]
) -> None:
    run = begin(task, **changes)
    (dev,) = run.dev
    logits = RecordedLogits(run.predict)
    run.task.evaluate(logits, dev.examples)
    run.trained.eval()
    total, targets = 0.0, 0
    for feature in run.task.features(dev.examples):
        batch = collate([feature], run.task.tokenizer.pad_id, CPU)
        with torch.no_grad():
            alone = run.trained(batch.input_ids, batch.segment_ids, batch.attention_mask).float()
        loss = run.task.loss(alone, batch)
        total, targets = total + float(loss.total), targets + loss.targets
    assert HeldOutLoss(run.task, dev.examples).mean(logits) == pytest.approx(total / targets, rel=1e-4)


def test_held_out_data_of_another_kind_than_the_loss_reads_have_none(
    begin: Callable[..., FinetuneTrainer],
) -> None:
    scored, pair = TextExample("a", "b", 0.5, "1"), TextExample("a", "b", None, "2")
    triplet = TextExample("a", "b", None, "3", ("c",))
    task = begin("similarity").task
    for loss, reads in (("cosine", [scored]), ("mnrl", [pair, triplet]), ("triplet", [triplet])):
        task.settings = EmbeddingSettings()  # type: ignore[attr-defined]
        task.loss_name = loss  # type: ignore[attr-defined]
        assert [each for each in (scored, pair, triplet) if task.has_loss_on([each])] == reads
