"""Settings of a comparison, from YAML and the command line, and the runs that they plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bert.errors import BertError, ConfigError
from tests.support.finetuning import files
from training.evaluation.runs import plan, read_checkpoint
from training.evaluation.settings import EvaluateSettings, from_command_line, spelled_out

Make = Callable[..., EvaluateSettings]


@pytest.fixture
def make(tiny_base: Path, tmp_path: Path) -> Make:
    """Return a maker of settings for one small task."""

    def settings(**changes: Any) -> EvaluateSettings:
        task = {"task": "ner", "train": files("ner", "train"), "dev": files("ner", "dev")}
        values = {"checkpoints": [str(tiny_base)], "tasks": {"ner": task}, "output_dir": tmp_path, **changes}
        return EvaluateSettings(**values)

    return settings


def test_the_command_line_takes_one_checkpoint_and_task_at_a_time() -> None:
    line = "--checkpoint A --checkpoint mlm=B --task sst2=x.yaml --task ner=y.yaml --seeds 4 5 6"
    settings = from_command_line(line.split())
    assert settings.checkpoints == ["A", "mlm=B"]
    assert settings.tasks == {"sst2": Path("x.yaml"), "ner": Path("y.yaml")}
    assert settings.seeds == [4, 5, 6]


def test_numbers_that_are_no_seeds_stay_what_they_are() -> None:
    given = ["--seeds=1", "--overrides", "max_steps=5", "--output-dir", "7", "8"]
    assert spelled_out(given) == given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 2, 1]}, "a seed stands twice"),
        ({"seeds": []}, "at least 1 item"),
        ({"checkpoints": []}, "at least 1 item"),
        ({"overrides": {"seed": 3}}, "seed cannot be overridden"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str, make: Make) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**changes)


def test_each_seed_runs_all_checkpoints_and_tasks_before_the_next(make: Make, tiny_base: Path) -> None:
    settings = make(
        checkpoints=[f"mlm={tiny_base}", f"fresh=random:{tiny_base}"], seeds=[7, 8], overrides={"epochs": 2}
    )
    runs = plan(settings)
    assert [(run.seed, run.row, run.settings.base) for run in runs] == [
        (7, "mlm", str(tiny_base)),
        (7, "fresh", f"random:{tiny_base}"),
        (8, "mlm", str(tiny_base)),
        (8, "fresh", f"random:{tiny_base}"),
    ]
    assert [run.settings.seed for run in runs] == [7, 7, 8, 8]
    assert runs[1].settings.output_dir == settings.output_dir / "runs" / "fresh" / "ner" / "seed-7"
    assert runs[0].settings.epochs == 2


def test_a_task_can_be_a_file_of_bert_finetune(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(
        "task: qa\noutput_dir: elsewhere\ntrain: [{path: a.json}]\ndev: [{path: b.json}]\nbatch_size: 9\n"
    )
    (run,) = plan(make(tasks={"squad": file}, seeds=[1]))
    assert (run.settings.task, run.settings.batch_size) == ("qa", 9)
    assert run.settings.output_dir.is_relative_to(tmp_path / "runs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"x": Path("missing.yaml")}}, r"task 'x': missing\.yaml cannot be read"),
        (
            {"tasks": {"x": {"task": "ner", "epoch": 3}}},
            "task 'x': epoch: there is no such setting; did you mean epochs",
        ),
        ({"tasks": {"x": {"task": "ner"}}}, "task 'x' names no dev files"),
        ({"tasks": {"x": {"task": "ner", "config": "y.yaml"}}}, "task 'x' names a `config`"),
        ({"tasks": {"x": {"task": "qa", "letter_shapes": True}}}, "task 'x': letter_shapes and left_out are"),
        (
            {"overrides": {"epochs": float("inf")}},
            r"task 'ner': epochs: .* a finite number \(given: inf\)",
        ),
        ({"checkpoints": ["./nowhere"]}, "'./nowhere' is neither a checkpoint folder"),
        ({"checkpoints": ["random:./nowhere"]}, "'./nowhere' is neither a checkpoint folder"),
    ],
)
def test_what_could_not_start_is_refused_beforehand(
    changes: dict[str, Any], message: str, make: Make
) -> None:
    with pytest.raises(BertError, match=message):
        plan(make(**changes))


def test_names_that_would_share_a_folder_are_refused(make: Make, tiny_base: Path) -> None:
    with pytest.raises(ConfigError, match="would share the folder 'a-b'"):
        plan(make(checkpoints=[f"a/b={tiny_base}", f"a b={tiny_base}"]))


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "lr=3"
    folder.mkdir()
    assert read_checkpoint(str(folder)) == (str(folder), str(folder))
    assert read_checkpoint("small=runs/a") == ("small", "runs/a")
