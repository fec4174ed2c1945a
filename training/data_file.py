"""A file of labelled data as a training command names it, and what is to be made of it."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from bert.data.examples import Format, LabelledFile
from bert.data.files import stem
from bert.settings import SettingsPart


class DataFile(SettingsPart):
    """One file of labelled data. A plain path is enough where the file itself decides the rest."""

    path: Path
    """The file; with format hub the name of a data set, or its folder."""
    format: Format = "auto"
    """Format; auto goes by the task, the ending and the content."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Columns that hold `text`, `text_pair`, `label` and the like (csv, tsv, jsonl, hub)."""
    label_map: dict[str, str | None] = Field(default_factory=dict)
    """Other names for entity types (ner); null makes a type O."""
    label_names: list[str] = Field(default_factory=list)
    """Names of labels or tags 0, 1, 2, ... in a file that has numbers for them."""
    skip_empty: bool = False
    """True skips and counts rows with an empty text or label instead of refusing the file (csv, tsv, jsonl, hub)."""
    glue_task: str | None = None
    """Name of the GLUE task; by default that of the folder."""
    hub_split: str = "train"
    """Split of a hub data set."""
    hub_config: str | None = None
    """Part of a hub data set that has several, such as sst2 of glue."""
    hub_revision: str | None = None
    """Commit, tag or branch of a hub data set; the data of a commit cannot change under a run."""
    name: str = ""
    """Name of a dev or test file in reports and task.json; by default the file name without its ending."""
    repeat: Annotated[float, Field(gt=0)] = 1.0
    """Draws of a training file's examples an epoch; 0.5 draws a half, another one each epoch."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    @property
    def labelled(self) -> LabelledFile:
        """The file in the form that readers take."""
        return LabelledFile(**{field.name: getattr(self, field.name) for field in fields(LabelledFile)})

    @property
    def source_name(self) -> str:
        """Name of its examples in reports and scores."""
        return self.name or stem(self.path)


def check_scored(files: Sequence[DataFile]) -> None:
    """Raise ValueError for a file that is scored and asks to be drawn more or less often than once."""
    for file in files:
        if file.repeat != 1:
            raise ValueError(f"repeat is for training files, and each example of {file.path} is scored once")
