"""Targets of similarity: one scale for all training data."""

import json
import shutil
from pathlib import Path

import pytest

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.checkpoint.weights import read_checkpoint
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


def settings_for_base(base: Path, folder: Path) -> FinetuneSettings:
    (folder / "train.csv").write_text(
        "text,text_pair,label\nOne,Two,1\nThree,Four,0\nFive,Six,0.5\n", encoding="utf-8"
    )
    return FinetuneSettings(
        task="similarity",
        base=str(base),
        output_dir=folder / "run",
        train=[{"path": folder / "train.csv"}],
        dev=[{"path": folder / "train.csv"}],
        max_tokens=32,
        epochs=1,
    )


def test_a_base_keeps_its_pooling_and_what_is_left_out_is_told(
    tiny_base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_base, base)
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [
        {"idx": n, "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    for name, content in (
        ("modules", modules),
        ("1_Pooling/config", {"pooling_mode": ["cls", "max"]}),
        ("2_Dense/config", {"in_features": 64, "out_features": 8}),
        ("config_sentence_transformers", {"prompts": {"query": "query: "}}),
    ):
        (base / name).parent.mkdir(exist_ok=True)
        (base / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    best = finetune(settings_for_base(base, tmp_path))
    assert "dense layers of" in caplog.text and "prompts of" in caplog.text
    exported = read_checkpoint(best)
    assert (exported.spec.pooling, exported.spec.dense, exported.spec.prompts) == ("cls+max", (), {})
    again = finetune(settings_for_base(best, tmp_path).model_copy(update={"output_dir": tmp_path / "again"}))
    assert read_checkpoint(again).spec.pooling == "cls+max"
