"""Settings of `bert-predict`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_settings import CliPositionalArg, NoDecode, SettingsConfigDict

from bert.settings import CommandSettings

Aggregation = Literal["first", "average", "max", "simple", "none"]
LeftOut = Literal["symbols", "handles", "punctuation"]
Format = Literal["jsonl", "csv", "tsv", "parquet"]
_COLUMN = "_column"
"""End of the settings that name the column of a field."""


class PredictSettings(CommandSettings):
    """Predict a file: bert-predict BUNDLE INPUT --out OUTPUT. See docs/bulk.md."""

    model_config = SettingsConfigDict(
        env_prefix="BERT_PREDICT_",
        cli_prog_name="bert-predict",
    )
    metavars: ClassVar[Mapping[str, str]] = {"model": "NAME", "labels": "LABEL,LABEL..."}
    positional: ClassVar[str] = "BUNDLE INPUT --out OUTPUT"

    paths: CliPositionalArg[list[str]] = Field(
        default=[],
        description="A bundle's folder, and the input: a .jsonl, .csv, .tsv or .parquet file, of text also with .gz, or - "
        "for standard input. With --model the input alone.",
    )
    out: str = Field(description="File to write, its format by its ending; - for standard output.")
    model: str | None = Field(
        None,
        description="Model of the hub (org/name, org/name@revision) or a checkpoint's folder, instead of a bundle. It is "
        "exported before its first use.",
    )
    model_precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        "auto", description="Precision of --model's export."
    )
    input_format: Format | None = Field(None, description="Format of the input. Default: by its ending.")
    output_format: Format | None = Field(None, description="Format of the output. Default: by its ending.")

    text_column: str | None = Field(None, description="Column of the text. Default: text.")
    text_pair_column: str | None = Field(
        None, description="Column of the second text of a pair. Default: text_pair."
    )
    question_column: str | None = Field(None, description="Column of the question. Default: question.")
    context_column: str | None = Field(None, description="Column of the paragraph. Default: context.")
    prompt_column: str | None = Field(None, description="Column of the prompt. Default: prompt.")
    choices_column: str | None = Field(None, description="Column of the list of choices. Default: choices.")
    prefix: str = Field("", description="Text before the names of the new columns.")

    top_k: int | None = Field(
        None,
        ge=1,
        description="Number of labels, answers, choices or candidates with their scores, best first.",
    )
    truncate: bool = Field(
        False, description="Cut texts at the model's length. Without it a longer one is a bad row."
    )
    threshold: float | None = Field(
        None,
        ge=0,
        description="Lowest score of a label in `scores`, or of an entity of `labels`; sparse vectors: weights over it.",
    )
    temperature: float | None = Field(
        None, gt=0, le=100, description="Divisor of a classifier's logits before softmax or sigmoid."
    )
    windows: Literal["max", "mean"] | None = Field(
        None, description="Classify long texts in windows, and take the highest of their scores or the mean."
    )
    max_answer_tokens: int | None = Field(None, ge=1, le=512, description="Longest answer, in tokens.")
    no_answer_threshold: float | None = Field(
        None, ge=0, le=1, description="Null is answered where `no_answer_score` is over this."
    )
    min_score: float | None = Field(None, ge=0, le=1, description="Entities with a lower score are left out.")
    labels: Annotated[list[str] | None, NoDecode] = Field(
        None,
        description="Types of the entities to keep, separated by commas; or, for a model that takes labels, those to choose "
        "from or to find. Default: all of the model's own.",
    )
    template: str | None = Field(
        None,
        description="What is read for each of `labels`, with {} in its place. Default: This example is {}., and {} for a "
        "model that judges all labels in one run.",
    )
    multi_label: bool = Field(
        False, description="Judge each of `labels` by itself: several may hold, or none."
    )
    flat: bool | None = Field(
        None, description="Of `labels` of any kind: no two entities overlap. Default: true."
    )
    join: bool = Field(
        False, description="Of `labels` of any kind: neighbouring entities of one label are one."
    )
    left_out: Annotated[list[LeftOut] | None, NoDecode] = Field(
        None,
        description="Kinds of words that no entity has, separated by commas: symbols, handles, punctuation.",
    )
    aggregation: Aggregation | None = Field(
        None, description="Way from the model's pieces to entities. Default: first."
    )
    dimensions: int | None = Field(None, ge=1, description="First numbers of each embedding. Default: all.")
    embedding_type: Literal["float", "float16", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description="Type of an embedding's numbers, as in /embed. Default: float."
    )
    prompt_name: str | None = Field(
        None,
        description="Name of the model's prompt that goes before each text. Default: the model's own default.",
    )

    side: Literal["query", "document"] | None = Field(
        None, description="Sparse and token vectors: what the texts are. Default: document."
    )
    pieces: bool = Field(False, description="Sparse vectors: give each piece as text too.")

    bad: Path | None = Field(None, description="File for the bad rows. Default: OUT.bad.jsonl.")
    keep_bad: bool = Field(
        False,
        description="Write bad rows to the output too, with empty new columns and the reason in the column `error`.",
    )
    max_bad: int | None = Field(None, ge=0, description="End when there are more bad rows than this.")
    restart: bool = Field(False, description="Begin again, whatever an earlier run has done.")
    overwrite: bool = Field(False, description="Replace an output that is already there.")
    quiet: bool = Field(False, description="Say nothing but errors.")

    engine_slots: int | None = Field(
        None, ge=1, description="Batches that run at once. Default: one per core, on a GPU two."
    )
    engine_threads_per_slot: int | None = Field(
        None, ge=1, description="Threads of one batch. Default: cores / slots."
    )
    batch_tokens: int | None = Field(
        None, ge=1, description="Tokens in a batch. Default: 512, on a GPU 65536."
    )
    verify_hashes: bool = Field(True, description="Check the bundle's files against its manifest.")

    @field_validator("labels", "left_out", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list) or any(isinstance(part, list | dict) for part in parts):
            return value
        return [name.strip() for part in parts for name in str(part).split(",") if name.strip()]

    @property
    def columns(self) -> dict[str, str]:
        """Fields whose columns are named."""
        return {name.removesuffix(_COLUMN): value for name, value in self if name.endswith(_COLUMN) and value}

    @property
    def options(self) -> dict[str, Any]:
        """The task's options that are given: settings that a request to its endpoint has too."""
        from service.tasks.table import BY_ROW  # takes long to import

        known = {name for task in BY_ROW.values() for name in task.options}
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        return {name: value for name, value in self if name in known and value != defaults[name]}
