"""Settings of `bert-mine`."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from bert.checkpoint.base_models import MINILM
from bert.settings import CommandSettings
from training.data_file import DataFile, check_scored


class MineSettings(CommandSettings):
    """Find hard negatives for pairs of texts: texts that an embedding model takes for the right one."""

    model_config = SettingsConfigDict(env_prefix="BERT_MINE_", cli_prog_name="bert-mine")

    model: str = Field(
        MINILM,
        description="folder of an embedding model, packaged base or model of the hub that looks for negatives",
    )
    pairs: list[DataFile] = Field(
        min_length=1, description="files of anchors and positives, [{path, format, ...}]"
    )
    pool: Path | None = Field(
        None,
        description="file with a further text a line, which may be negatives; those of the pairs always may",
    )
    output: Path = Field(
        description="file to write (.jsonl): anchor, positive and negatives, as bert-finetune reads them"
    )
    negatives: int = Field(4, ge=1, le=100, description="most negatives of a pair")
    skip: int = Field(0, ge=0, description="nearest texts that are passed over, as they may be right")
    margin: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="share of the positive's cosine by which a negative must be further away: what is nearer may be right",
    )
    device: str = Field("auto", description="cpu, cuda, or auto, which takes a GPU if there is one")
    threads: int = Field(0, ge=0, le=4096, description="CPU threads of torch; 0 leaves torch's own choice")

    @field_validator("pairs")
    @classmethod
    def _are_read_once(cls, files: list[DataFile]) -> list[DataFile]:
        check_scored(files)
        return files
