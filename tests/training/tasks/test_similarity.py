"""Targets of similarity: one scale for all training data."""

from pathlib import Path

import pytest

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.data.examples import TextExample
from bert.errors import ConfigError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.finetune import finetune
from training.finetuning.batches import EpochBatches
from training.finetuning.trainer import FinetuneTrainer
from training.settings import FinetuneSettings
from training.tasks.similarity import SimilarityFinetuning


def examples(*scores: float) -> list[TextExample]:
    return [TextExample(f"Text {n}.", f"Other {n}.", score, str(n)) for n, score in enumerate(scores)]


def task() -> SimilarityFinetuning:
    return SimilarityFinetuning(Tokenizer.load(resolve_base(MINILM)), TaskSpec("similarity", max_tokens=32))


def test_the_highest_score_of_all_training_data_is_1() -> None:
    similarity = task()
    similarity.prepare([*examples(1.0, 5.0), *examples(0.0, 2.5)])
    assert [feature.target for feature in similarity.features(examples(1.0, 5.0))] == [0.2, 1.0]
    assert [feature.target for feature in similarity.features(examples(0.0, 2.5))] == [0.0, 0.5]


@pytest.mark.parametrize("scores", [(0.0, 0.0), (-2.0, -1.0)])
def test_scores_without_one_above_0_are_refused(scores: tuple[float, float]) -> None:
    with pytest.raises(
        ConfigError, match=r"the highest similarity of the training data is (0|-1); it must be"
    ):
        task().prepare(examples(*scores))


def test_a_run_scales_its_files_alike(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[FinetuneTrainer] = []
    monkeypatch.setattr(FinetuneTrainer, "run", lambda run: runs.append(run))
    files = []
    for name, scores in (("a", (1, 5)), ("b", (0, 2.5))):
        files.append({"path": tmp_path / f"{name}.csv"})
        rows = "".join(f"One {name}{n},Two {name}{n},{score}\n" for n, score in enumerate(scores))
        (tmp_path / f"{name}.csv").write_text("text,text_pair,label\n" + rows, encoding="utf-8")
    finetune(
        FinetuneSettings(
            task="similarity", base=str(tiny_base), output_dir=tmp_path / "run", train=files, max_tokens=32
        )
    )
    data = runs[0].loop.data
    assert isinstance(data, EpochBatches)
    assert [feature.target for feature in data.data.features] == [0.2, 1.0, 0.0, 0.5]
