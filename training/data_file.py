"""A file of labelled data as a training command names it, and what is to be made of it."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bert.data.compressed import stem
from bert.data.labelled_file import LabelledFile
from bert.settings import SettingsPart
from training.command_line import drop_removed


class DataFile(SettingsPart):
    """One file of labelled data. A plain path is enough where the file itself decides the rest."""

    path: Path
    """The file; with format hub the name of a data set, or its folder."""
    format: Literal[
        "auto", "glue", "csv", "tsv", "jsonl", "conll", "squad", "codah", "swag", "hub", "recurring_spans"
    ] = "auto"
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
    unlearned: list[str] = Field(default_factory=list)
    """Words of a file (ner) whose tags are not learned: `handles`, `untagged_handles`, `capitals` (tagged O), or a type."""
    unanswerable: Annotated[float, Field(ge=0)] = 0.0
    """Unanswerable questions to make for each answerable one (qa), from other paragraphs."""
    unanswerable_cut: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the answerable questions (qa) that are asked again of their paragraph without the answer's sentences."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Largest number of questions to make of raw text (format recurring_spans); by default no limit."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        if isinstance(value, str | Path):
            return {"path": value}
        return drop_removed(
            value, "unanswerable_edited", 0.0, "`unanswerable` makes questions without an answer"
        )

    @property
    def labelled(self) -> LabelledFile:
        """The file in the form that readers take."""
        return LabelledFile(**{field.name: getattr(self, field.name) for field in fields(LabelledFile)})

    @property
    def source_name(self) -> str:
        """Name of its examples in reports and scores."""
        return self.name or stem(self.path)

    @property
    def unanswerable_name(self) -> str:
        """Name of the questions that are made from other paragraphs."""
        return f"{self.source_name}-unanswerable"

    @property
    def cut_name(self) -> str:
        """Name of the questions whose answer is cut out of the paragraph."""
        return f"{self.source_name}-cut"

    @property
    def source_names(self) -> list[str]:
        """All names under which it has scores."""
        made = [(self.unanswerable, self.unanswerable_name), (self.unanswerable_cut, self.cut_name)]
        return [self.source_name, *(name for share, name in made if share)]


def check_scored(files: Sequence[DataFile]) -> None:
    """Raise ValueError where a file that is scored has what only training reads."""
    for file in files:
        if file.unlearned:
            raise ValueError(f"unlearned is for training files, and {file.path} is scored on all its words")
        if file.repeat != 1:
            raise ValueError(f"repeat is for training files, and each example of {file.path} is scored once")
