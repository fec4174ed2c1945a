"""Settings of `bert-evaluate`: checkpoints, tasks and seeds."""

import sys
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from bert.settings import CommandSettings, read_settings

_OWNED = ("base", "output_dir", "seed", "resume", "config")
"""Fine-tuning settings that the comparison sets for every run."""


class EvaluateSettings(CommandSettings):
    """Fine-tune checkpoints on tasks with several seeds, and put their scores on held-out data into a table."""

    model_config = SettingsConfigDict(env_prefix="BERT_EVALUATE_", cli_prog_name="bert-evaluate")

    checkpoints: list[str] = Field(
        min_length=1,
        description="rows of the table: folders, models of the hub, packaged bases, or random:FOLDER for fresh weights "
        "of a folder's shape and vocabulary; NAME=FOLDER gives the row a name",
    )
    tasks: dict[str, Path | dict[str, Any]] = Field(
        min_length=1,
        description="columns of the table: name, and the YAML file of a bert-finetune run or its settings",
    )
    seeds: list[int] = Field([1, 2, 3], min_length=1, description="one run a seed, checkpoint and task")
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="bert-finetune settings for every run, over those of its task, such as {max_steps: 500}",
    )
    output_dir: Path = Field(
        Path("runs/evaluate"), description="folder for table.md, table.json and the runs"
    )
    keep_checkpoints: bool = Field(
        False, description="keep each run's fine-tuned weights; otherwise its scores and report only"
    )
    resume: bool = Field(
        True,
        description="leave out runs that are finished in output_dir, and go on with the one that was killed",
    )

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"a seed stands twice in {seeds}: the same run would count twice")
        return seeds

    @field_validator("overrides")
    @classmethod
    def _leave_owned(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        if owned := sorted(set(overrides) & set(_OWNED)):
            raise ValueError(f"{', '.join(owned)} cannot be overridden: each run has its own")
        return overrides


def from_command_line(arguments: list[str] | None = None) -> EvaluateSettings:
    """Read settings; see `read_settings`."""
    given = sys.argv[1:] if arguments is None else arguments
    return read_settings(EvaluateSettings, spelled_out(given))


def spelled_out(arguments: list[str]) -> list[str]:
    """Turn `--checkpoint A`, `--task x=y` and `--seeds 1 2 3` into the options that the settings have."""
    names = {"--checkpoint": "--checkpoints", "--task": "--tasks", "--seed": "--seeds"}
    out: list[str] = []
    for argument in arguments:
        name, sign, value = argument.partition("=")
        if name in names:
            out.append(names[name] + sign + value)
        elif argument.isdecimal() and len(out) > 1 and out[-2] == "--seeds":
            out[-1] += f",{argument}"
        else:
            out.append(argument)
    return out
