"""The deciding score of a finished run."""

from pathlib import Path

import pytest

from bert.errors import TrainingError
from bert.tasks.spec import TaskSpec
from training.evaluation.runs import read_result
from training.settings import FinetuneSettings


def test_triplets_are_decided_by_their_accuracy_and_scores_by_spearman(
    tiny_base: Path, tmp_path: Path
) -> None:
    settings = FinetuneSettings(task="similarity", base=str(tiny_base), output_dir=tmp_path)
    triplets = {"triplet_accuracy": 0.75, "recall_at_1": 0.5, "mrr": 0.6}
    for scores, expected in (
        ({"a": triplets}, ("triplet_accuracy", 0.75)),
        ({"a": triplets, "b": {"spearman": 0.8, "pearson": 0.7}}, ("spearman", 0.8)),
    ):
        found = read_result(settings, TaskSpec("similarity", scores=scores))
        assert (found.metric, found.score) == expected
    with pytest.raises(TrainingError, match="spearman of a is not a number"):
        read_result(settings, TaskSpec("similarity", scores={"a": {}}))
