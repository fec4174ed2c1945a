"""Settings of `bert-average`."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from bert.settings import CommandSettings
from training.data_file import DataFile, check_scored


class AverageSettings(CommandSettings):
    """Average the weights of fine-tuned checkpoints; write a checkpoint, or the difference to the base as an adapter."""

    model_config = SettingsConfigDict(env_prefix="BERT_AVERAGE_", cli_prog_name="bert-average")

    checkpoints: list[Path] = Field(
        min_length=1,
        description="folders that bert-finetune wrote from one base, for the same task and labels",
    )
    output_dir: Path = Field(description="folder for the result")
    adapter_rank: int | None = Field(
        None,
        ge=1,
        description="write the difference to the base as a LoRA adapter of this rank; by default all weights are written",
    )
    base: str | None = Field(
        None,
        description="base of the adapter: folder, packaged name or model of the hub; by default the one in task.json",
    )
    dev: list[DataFile] = Field(
        default_factory=list,
        description="files that score the mean and the adapter, [{path, format, ...}]",
    )
    device: str = Field(
        "auto", description="device of the scores: cpu, cuda, or auto, which takes a GPU if there is one"
    )
    threads: int = Field(0, ge=0, le=4096, description="CPU threads of torch; 0 leaves torch's own choice")

    @field_validator("dev")
    @classmethod
    def _are_only_scored(cls, files: list[DataFile]) -> list[DataFile]:
        check_scored(files)
        return files
