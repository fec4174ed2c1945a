"""What happens around the steps: saves, stops, evaluations whose score is no number, what is recorded."""

import itertools
import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert.errors import ConfigError, TrainingError
from bert.tasks.spec import TaskSpec
from tests.support.finetuning import files, short_run
from training.command_line import command
from training.engine.device import StepNumbers
from training.engine.records import StepsLog, TensorBoard
from training.engine.signals import RunStopped
from training.engine.state import RunState
from training.engine.train_loop import StepData, TrainLoop
from training.engine.trainer import Trainer
from training.finetune import finetune
from training.finetuning import model as models
from training.finetuning import scores
from training.finetuning.batches import EpochBatches
from training.finetuning.scores import HeldOutLoss
from training.finetuning.trainer import is_better, wins_tie
from training.settings import FinetuneSettings
from training.tasks.sequence import SequenceFinetuning

Make = Callable[..., FinetuneSettings]
LONG: dict[str, Any] = {"epochs": 3, "save_every_steps": 1, "dropout": 0.1}


def weights(best: Path) -> dict[str, torch.Tensor]:
    return load_file(best / "model.safetensors")


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def report(settings: FinetuneSettings) -> dict[str, Any]:
    def refuse(number: str) -> None:
        raise AssertionError(f"{number} is not JSON")

    text = (settings.output_dir / "report" / "report.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return content


def saves(settings: FinetuneSettings) -> list[str]:
    return sorted(path.name for path in (settings.output_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def straight(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of the long run, never stopped."""
    folder = tmp_path_factory.mktemp("straight")
    return weights(finetune(short_run("classification", tiny_base, folder, **LONG)))


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Return what lets something happen in a step of the next run."""

    def make(number: int, happen: Callable[[], None]) -> None:
        def step(loop: TrainLoop, data: StepData) -> StepNumbers:
            if loop.state.step == number - 1:
                happen()
                monkeypatch.setattr(TrainLoop, "step", real)
            return real(loop, data)

        monkeypatch.setattr(TrainLoop, "step", step)

    real = TrainLoop.step
    return make


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_to_the_same_weights(
    number: signal.Signals,
    settings_for: Make,
    straight: dict[str, torch.Tensor],
    at_step: Callable[[int, Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = settings_for("classification", **{**LONG, "save_every_steps": 0})
    at_step(4, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as ended:
        command(lambda: finetune(settings))()
    assert ended.value.code == 128 + number  # a script must not take it for the end
    assert "stopped at step 4 of 24; the same command resumes from there" in capsys.readouterr().err
    assert saves(settings) == ["step-00000004"]
    assert equal(straight, weights(finetune(settings)))


def test_a_stop_in_an_evaluation_loses_neither_its_step_nor_its_score(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(task: SequenceFinetuning, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the evaluation went on")

    settings = settings_for("classification", epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(SequenceFinetuning, "evaluate", stops)
        with pytest.raises(RunStopped, match="step 8 of 16"):
            finetune(settings)
    finetune(settings)
    assert [evaluation["step"] for evaluation in report(settings)["evaluations"]] == [8, 16]


def test_a_stop_in_the_last_evaluation_of_several_processes_is_kept(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SequenceFinetuning.evaluate

    def asks(task: SequenceFinetuning, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(task, *arguments)

    settings = settings_for("classification")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "interruptible", lambda _: nullcontext())  # several wait for one another
        patch.setattr(SequenceFinetuning, "evaluate", asks)
        with pytest.raises(RunStopped, match="step 8 of 8"):
            finetune(settings)
    assert not (settings.output_dir / "report").exists()
    finetune(settings)
    assert [evaluation["step"] for evaluation in report(settings)["evaluations"]] == [8]


def test_records_that_cannot_be_opened_leave_nothing_open(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise TrainingError("no TensorBoard")

    def close(log: StepsLog) -> None:
        closed.append("log")
        real(log)

    closed: list[str] = []
    real = StepsLog.close
    monkeypatch.setattr(TensorBoard, "__init__", fails)
    monkeypatch.setattr(StepsLog, "close", close)
    monkeypatch.setattr(EpochBatches, "close", lambda _: closed.append("data"))
    with pytest.raises(TrainingError, match="no TensorBoard"):
        finetune(settings_for("classification"))
    assert closed == ["log", "data"]


def test_a_failed_evaluation_leaves_its_step_saved(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(SequenceFinetuning, "evaluate", fails)
    settings = settings_for("classification")
    with pytest.raises(MemoryError):
        finetune(settings)
    assert saves(settings) == ["step-00000008"]


def test_a_damaged_save_is_passed_over(
    settings_for: Make, straight: dict[str, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for("classification", **LONG)
    best = finetune(settings)
    assert saves(settings) == ["step-00000023", "step-00000024"]
    (settings.output_dir / "checkpoints" / "step-00000024" / "state.json").write_text("{", encoding="utf-8")
    assert equal(straight, weights(best))
    assert equal(straight, weights(finetune(settings)))
    assert "step-00000024 is passed over" in caplog.text


def test_a_run_without_resume_starts_anew(settings_for: Make) -> None:
    finetune(settings_for("classification", epochs=2))
    settings = settings_for("classification", learning_rate=2e-3, resume=False)
    finetune(settings)
    assert saves(settings) == ["step-00000008"]
    assert report(settings)["training"]["steps"] == 8


def test_a_kill_between_two_renames_leaves_the_best_checkpoint(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At so low a rate both evaluations score alike, and of rising losses the first one stays the best. Were it the last,
    # the weights of the newest save would be the same ones, whether or not the best come back.
    losses = itertools.count()
    monkeypatch.setattr(HeldOutLoss, "mean", lambda *_: float(next(losses)))
    settings = settings_for("classification", epochs=2, learning_rate=1e-6)
    best = finetune(settings)
    assert report(settings)["best_step"] == 8
    expected = weights(best)
    best.rename(best.with_name(".best.previous"))
    best.with_name(".best.partial-killed").mkdir()
    assert equal(expected, weights(finetune(settings)))
    assert {path.name for path in settings.output_dir.iterdir()} == {
        "best", "checkpoints", "log.jsonl", "report", "tensorboard",
    }  # fmt: skip


def test_a_full_disk_is_said_of_the_best_checkpoint_too(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for("classification")
    best = finetune(settings)
    before = weights(best)

    def full(*_: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(models, "save_checkpoint", full)
    with pytest.raises(
        TrainingError, match=r"best could not be written: No space left on device; .* Make room"
    ):
        finetune(settings)
    assert equal(before, weights(best))


def test_an_unknown_metric_is_refused_before_training(settings_for: Make) -> None:
    settings = settings_for("classification", metric="nope")
    known = "metric is 'nope'; known for classification are accuracy, f1_macro, matthews, f1$"
    with pytest.raises(ConfigError, match=known):
        finetune(settings)
    assert not settings.output_dir.exists()


def test_a_metric_that_no_file_has_is_no_number(settings_for: Make, tmp_path: Path) -> None:
    (tmp_path / "dev.conll").write_text("Rome\tB-LOC\nsleeps\tO\n", encoding="utf-8")
    settings = settings_for(
        "ner", dev=[{"path": tmp_path / "dev.conll"}], metric="f1_PER", learning_rate=1e-9
    )
    assert TaskSpec.read(finetune(settings)).scores["dev"]


def test_a_score_that_is_no_number_is_below_any_other(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, given = SequenceFinetuning.evaluate, iter([math.nan, 0.1, math.nan, 0.05])

    def evaluate(task: SequenceFinetuning, *arguments: Any) -> Any:
        found = real(task, *arguments)
        found.scores["accuracy"] = next(given, math.nan)
        return found

    monkeypatch.setattr(SequenceFinetuning, "evaluate", evaluate)
    settings = settings_for("classification", epochs=4)
    best = finetune(settings)
    assert report(settings)["best_step"] == 16
    assert "accuracy is not a number" in caplog.text
    assert "NaN" not in (best / "task.json").read_text(encoding="utf-8")
    saved = settings.output_dir / "checkpoints" / "step-00000032" / "state.json"
    assert "NaN" not in saved.read_text(encoding="utf-8")


def easy(folder: Path) -> dict[str, Any]:
    """Return files of a run that is right about all of dev long before its end: one word says the label."""
    for part, count in (("train", 60), ("dev", 20), ("test", 30)):
        rows = "".join(
            f"{'sun' if n % 2 else 'rain'} again,{'good' if n % 2 else 'bad'}\n" for n in range(count)
        )
        (folder / f"{part}.csv").write_text("text,label\n" + rows, encoding="utf-8")
    return {part: [{"path": folder / f"{part}.csv"}] for part in ("train", "dev", "test")}


def test_of_equal_scores_the_lower_loss_is_kept_and_its_step_is_said_of_the_test(
    settings_for: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for("classification", **easy(tmp_path), epochs=6, eval_every_steps=4)
    best = finetune(settings)
    content = report(settings)
    perfect = [e for e in content["evaluations"] if e["scores"]["dev"]["accuracy"] == 1.0]
    lowest = min(perfect, key=lambda e: e["loss"])
    assert perfect[0]["step"] < lowest["step"] == content["best_step"]
    assert TaskSpec.read(best).scores["test"]["accuracy"] == 1.0
    printed = capsys.readouterr().err
    assert f"scoring the weights of step {lowest['step']}, the best by accuracy" in printed
    assert f"step {lowest['step']}: test: accuracy 1.0000" in printed


def test_the_loss_on_held_out_data_takes_no_forward_pass_of_its_own(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = scores.predict

    def predict(model: Any, rows: Any, *others: Any) -> Any:
        asked.append(len(rows))
        return real(model, rows, *others)

    monkeypatch.setattr(scores, "predict", predict)
    settings = settings_for("classification")
    finetune(settings)
    (evaluation,) = report(settings)["evaluations"]
    assert evaluation["loss"] > 0
    assert len(asked) == 2 and asked[0] == asked[1]  # at the end of the epoch, and of the run


def test_a_loss_that_is_unknown_leaves_a_tie_to_the_later_step() -> None:
    equal = RunState(best_step=4, best_score=1.0, best_loss=0.2)
    assert wins_tie(1.0, 0.1, equal) and wins_tie(1.0, 0.2, equal) and not wins_tie(1.0, 0.3, equal)
    assert wins_tie(1.0, None, equal) and not wins_tie(0.9, 0.1, equal)
    assert wins_tie(1.0, 9.0, RunState(best_step=4, best_score=1.0))


def test_the_first_score_is_the_best_whatever_it_is() -> None:
    assert is_better(None, RunState())
    assert not is_better(0.1, RunState(best_score=0.2))  # of the weights that the run started from
    assert is_better(0.1, RunState(best_step=1))
    assert not is_better(None, RunState(best_step=1))
    assert not is_better(None, RunState(best_step=1, best_score=0.1))
    assert not is_better(0.1, RunState(best_step=1, best_score=0.1))


def test_all_commands_of_a_run_are_recorded(settings_for: Make) -> None:
    finetune(settings_for("classification"), "first")
    finetune(settings_for("classification"), "first")
    best = finetune(settings_for("classification", epochs=2), "second")
    assert TaskSpec.read(best).command == "first\nsecond"


def test_the_number_of_examples_is_recorded_beside_the_scores(settings_for: Make, tmp_path: Path) -> None:
    test = [{**files("classification", "dev")[0], "name": "test"}]
    best = finetune(settings_for("classification", test=test, eval_limit=2))
    counts = TaskSpec.read(best).counts
    assert set(counts) == {"sentiment-dev", "test"}
    assert counts["sentiment-dev"] == counts["test"] > 2
