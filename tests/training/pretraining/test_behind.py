"""A run whose numbers come a step late, as they do on a GPU, ends as one whose numbers are there at once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert.errors import TrainingError
from tests.support.pretraining_runs import SMALL, checkpoints, losses
from training.engine.checkpoints import CheckpointStore
from training.engine.device import StepNumbers
from training.engine.signals import RunStopped
from training.engine.train_loop import TrainLoop
from training.engine.trainer import Trainer
from training.pretrain import pretrain
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import PretrainTrainer


def run(corpus: Path, out: Path, **changes: Any) -> None:
    pretrain(PretrainSettings(**{**SMALL, "corpus": corpus, "output_dir": out, "max_steps": 12, **changes}))


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let numbers come a step late; return what happens, in its order."""
    happened: list[str] = []
    monkeypatch.setattr(TrainLoop, "lag", 1)

    def noting(cls: type, name: str, note: Any) -> None:
        real = getattr(cls, name)

        def noted(self: Any, *arguments: Any) -> Any:
            happened.append(note(self, *arguments))
            return real(self, *arguments)

        monkeypatch.setattr(cls, name, noted)

    noting(TrainLoop, "step", lambda loop, _: f"step {loop.state.step + 1}")
    noting(PretrainTrainer, "on_step", lambda _, numbers: f"numbers {numbers['step']}")
    noting(CheckpointStore, "save", lambda _, step, *__: f"save {step}")
    noting(Trainer, "_evaluate", lambda trainer: f"evaluate {trainer.loop.state.step}")
    return happened


PHASES = [{"max_tokens": 32, "share": 0.5}, {"max_tokens": 48, "share": 0.5}]


def test_a_run_behind_its_steps_leaves_the_same(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"save_every_steps": 5, "eval_every_steps": 4, "phases": PHASES}
    run(corpus, tmp_path / "at_once", **changes)
    monkeypatch.setattr(TrainLoop, "lag", 1)
    run(corpus, tmp_path / "late", **changes)
    at_once, late = (log_of(tmp_path / name) for name in ("at_once", "late"))
    assert at_once == late and len(late) == 12 + 3
    model, same = (load_file(tmp_path / name / "model/model.safetensors") for name in ("at_once", "late"))
    assert all(torch.equal(same[name], weight) for name, weight in model.items())


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a log without the numbers that depend on the clock."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("tokens_per_second", "mfu")} for line in lines]


def test_numbers_come_while_the_next_step_is_under_way_and_before_a_save(
    corpus: Path, tmp_path: Path, behind: list[str]
) -> None:
    run(corpus, tmp_path / "run", max_steps=5, save_every_steps=3, eval_every_steps=4)
    assert behind == [
        "step 1", "step 2", "numbers 1", "step 3", "numbers 2", "numbers 3", "save 3",
        "step 4", "numbers 4", "evaluate 4", "step 5", "numbers 5", "save 5", "evaluate 5",
    ]  # fmt: skip


def test_a_loss_that_is_no_number_stops_the_run_before_it_is_saved(
    corpus: Path, tmp_path: Path, behind: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = StepNumbers.__getitem__

    def ill(numbers: StepNumbers, name: str) -> float:
        return math.nan if name == "grad_norm" and numbers.known["step"] == 6 else real(numbers, name)

    monkeypatch.setattr(StepNumbers, "__getitem__", ill)
    with pytest.raises(TrainingError, match=r"step 6: the loss is .*, the gradient norm nan"):
        run(corpus, tmp_path / "run", save_every_steps=3)
    assert behind[-3:] == ["step 6", "numbers 5", "numbers 6"]
    assert [folder.name for folder in checkpoints(tmp_path / "run")] == ["step-00000003"]
    assert [step for step, _, _ in losses(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_asked_to_stop_a_run_behind_its_steps_saves_all_of_them(
    corpus: Path, tmp_path: Path, behind: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainLoop.step

    def asked(loop: TrainLoop, data: Any) -> StepNumbers:
        loop.stop_asked = loop.state.step == 3
        return step(loop, data)

    monkeypatch.setattr(TrainLoop, "step", asked)
    with pytest.raises(RunStopped, match="stopped at step 4 of 12"):
        run(corpus, tmp_path / "run")
    assert behind[-3:] == ["numbers 3", "numbers 4", "save 4"]
    monkeypatch.setattr(TrainLoop, "step", step)
    run(corpus, tmp_path / "run")
    assert [number for number, _, _ in losses(tmp_path / "run")] == list(range(1, 13))
