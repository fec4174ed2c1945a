"""A comparison from settings to table: what is finished stays, what was killed goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert.errors import ConfigError, DataError, TrainingError
from bert.nn.checkpoint import read_weights
from bert.tasks.spec import TaskSpec
from tests.support.finetuning import files
from training.engine.device import StepNumbers
from training.engine.train_loop import StepData, TrainLoop
from training.evaluate import Comparison
from training.evaluation.settings import EvaluateSettings
from training.finetune import finetune
from training.settings import FinetuneSettings

Make = Callable[..., EvaluateSettings]
TASK = {
    "task": "classification",
    "train": files("classification", "train"),
    "dev": files("classification", "dev"),
    "epochs": 1,
    "batch_size": 8,
    "max_tokens": 48,
    "learning_rate": 1e-3,
}


@pytest.fixture
def make(tiny_base: Path, tmp_path: Path) -> Make:
    """Return a maker of settings: a checkpoint and fresh weights on one task with two seeds."""

    def settings(**changes: Any) -> EvaluateSettings:
        values = {
            "checkpoints": [f"tiny={tiny_base}", f"fresh=random:{tiny_base}"],
            "tasks": {"reviews": TASK},
            "seeds": [1, 2],
            "output_dir": tmp_path / "probe",
            **changes,
        }
        return EvaluateSettings(**values)

    return settings


class Pretend:
    """Stands in for fine-tuning: writes down what it is asked for, and a score that the seed decides."""

    def __init__(self, diverges: int = 0, killed_at: int = 99) -> None:
        self.diverges, self.killed_at, self.asked = diverges, killed_at, list[str]()

    def __call__(self, settings: FinetuneSettings, command: str) -> Path:
        if len(self.asked) == self.killed_at:
            raise KeyboardInterrupt
        self.asked.append(f"{settings.base.split(':')[0][:6]} {settings.seed}")
        if settings.seed == self.diverges:
            raise TrainingError("the loss is nan")
        folder = settings.output_dir / "best"
        folder.mkdir(parents=True)
        scores = {"sentiment-dev": {"accuracy": settings.seed / 10, "f1": 0.9}}
        scores |= {file.path.stem: {"accuracy": 0.0} for file in settings.test}
        TaskSpec("classification", ("a", "b"), scores=scores).write(folder)
        return folder


def table(settings: EvaluateSettings) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((settings.output_dir / "table.json").read_text())["checkpoints"]
    return content


def test_real_runs_end_in_a_table_of_checkpoints_by_tasks(make: Make) -> None:
    settings = make(seeds=[1])
    printed = Comparison(settings, "the command").run()
    assert printed in (settings.output_dir / "table.md").read_text()
    for row in ("tiny", "fresh"):
        cell = table(settings)[row]["tasks"]["reviews"]
        run = settings.output_dir / "runs" / row / "reviews" / "seed-1"
        report = json.loads((run / "report" / "report.json").read_text())
        assert cell["n"] == 1
        assert cell["mean"] == report["dev"]["sentiment-dev"]["scores"]["accuracy"]
        assert not (run / "best").exists()
        assert not (run / "checkpoints").exists()


def test_cells_are_the_mean_over_seeds_of_the_dev_files_metric(make: Make) -> None:
    test = [{"path": "held.csv"}]
    settings = make(tasks={"reviews": {**TASK, "test": test}}, seeds=[2, 6])
    assert "40.0 ± 28.3 (2)" in Comparison(settings, finetune=Pretend()).run()


def test_finished_runs_are_not_done_again(make: Make) -> None:
    killed, after = Pretend(killed_at=3), Pretend()
    with pytest.raises(KeyboardInterrupt):
        Comparison(make(), finetune=killed).run()
    assert table(make())["fresh"]["tasks"]["reviews"]["n"] == 1
    printed = Comparison(make(), finetune=after).run()
    assert (len(killed.asked), after.asked) == (3, ["random 2"])
    assert Comparison(make(), finetune=Pretend(killed_at=0)).run() == printed


def test_another_seed_adds_to_what_is_there(make: Make) -> None:
    Comparison(make(), finetune=Pretend()).run()
    more = Pretend()
    Comparison(make(seeds=[1, 2, 3]), finetune=more).run()
    assert [asked.split()[1] for asked in more.asked] == ["3", "3"]


def test_other_settings_are_refused_before_anything_runs_unless_started_anew(make: Make) -> None:
    Comparison(make(), finetune=Pretend()).run()
    other = make(overrides={"epochs": 2})
    with pytest.raises(TrainingError, match=r"other values \(epochs\)"):
        Comparison(other, finetune=Pretend())
    anew = Pretend()
    Comparison(make(overrides={"epochs": 2}, resume=False), finetune=anew).run()
    assert len(anew.asked) == 4


def test_a_checkpoint_that_was_trained_on_is_another_one(make: Make, tiny_base: Path, tmp_path: Path) -> None:
    moving = tmp_path / "moving"
    moving.mkdir()
    for file in tiny_base.iterdir():
        (moving / file.name).write_bytes(file.read_bytes())
    settings = make(checkpoints=[f"moving={moving}"])
    Comparison(settings, finetune=Pretend()).run()
    weights = bytearray((moving / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (moving / "model.safetensors").write_bytes(weights)
    with pytest.raises(TrainingError, match=r"other values \(base_files\)"):
        Comparison(settings, finetune=Pretend())


def test_a_seed_that_diverges_does_not_stop_the_others(make: Make) -> None:
    comparison = Comparison(make(seeds=[1, 2, 3]), finetune=Pretend(diverges=2))
    assert "20.0 ± 14.1 (2) 1 failed" in comparison.run()
    with pytest.raises(TrainingError, match="2 of 6 runs failed"):
        comparison.raise_failures()
    assert table(make())["tiny"]["tasks"]["reviews"]["failed"] == {"2": "the loss is nan"}


def test_data_that_cannot_be_read_does_not_stop_the_others_and_may_be_mended(
    make: Make, tmp_path: Path
) -> None:
    def reads(settings: FinetuneSettings, command: str) -> Path:
        if settings.dev[0].path.name == "bad.csv":
            raise DataError(settings.dev[0].path, 1, "has another label")
        return Pretend()(settings, command)

    bad = {**TASK, "dev": [{"path": str(tmp_path / "bad.csv")}]}
    comparison = Comparison(make(tasks={"bad": bad, "good": TASK}), finetune=reads)
    assert "2 failed" in comparison.run()
    assert table(make())["tiny"]["tasks"]["good"]["scores"] == {"1": 0.1, "2": 0.2}
    comparison = Comparison(make(tasks={"bad": TASK, "good": TASK}), finetune=reads)
    assert "failed" not in comparison.run()


def test_weights_are_kept_where_asked_for(make: Make) -> None:
    settings = make(seeds=[1], keep_checkpoints=True)
    Comparison(settings, finetune=Pretend()).run()
    assert (settings.output_dir / "runs" / "tiny" / "reviews" / "seed-1" / "best" / "task.json").is_file()


def test_several_processes_are_refused_before_they_write_one_table(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="start it without torchrun"):
        Comparison(make())


class Killed(Exception):
    """Stands in for a kill at a chosen step."""


def test_a_run_that_was_killed_goes_on_from_its_last_save(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(checkpoints=make().checkpoints[1:], seeds=[1], overrides={"save_every_steps": 1})
    step, steps = TrainLoop.step, list[int]()

    def dies_at_the_fifth_step(loop: TrainLoop, data: StepData) -> StepNumbers:
        if len(steps) == 4:
            steps.append(-1)
            raise Killed
        steps.append(loop.state.step)
        return step(loop, data)

    monkeypatch.setattr(TrainLoop, "step", dies_at_the_fifth_step)
    with pytest.raises(Killed):
        Comparison(settings).run()
    Comparison(settings).run()
    assert steps == [0, 1, 2, 3, -1, 4, 5, 6, 7]


def test_fresh_weights_are_the_seeds_and_not_the_folders(tiny_base: Path, tmp_path: Path) -> None:
    shape = tmp_path / "shape"
    shape.mkdir()
    for file in tiny_base.iterdir():
        if file.suffix == ".json":
            (shape / file.name).write_bytes(file.read_bytes())
    first = []
    for seed in (1, 2):
        settings = FinetuneSettings(
            **{**TASK, "learning_rate": 1e-12, "max_steps": 1},  # type: ignore[arg-type]
            base=f"random:{shape}",
            output_dir=tmp_path / str(seed),
            seed=seed,
        )
        first.append(read_weights(finetune(settings))["bert.encoder.layer.0.output.dense.weight"])
    known = read_weights(tiny_base)["bert.encoder.layer.0.output.dense.weight"]
    assert not first[0].equal(first[1])
    assert not first[0].equal(known)
    assert float(first[0].std()) == pytest.approx(float(known.std()), rel=0.1)
