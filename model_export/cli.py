"""`bert-export`: a checkpoint to a bundle, or the demo models to theirs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict, SettingsError

from bert.errors import BertError
from model_export.demo import build_demo, made_by
from model_export.progress import say
from model_export.tolerance import AUTO, Tolerance

FAILED, USAGE_ERROR = 1, 2


class ExportSettings(BaseSettings):
    """Build a bundle from a checkpoint: the fused ONNX graph, verified against the checkpoint's own answers."""

    model_config = SettingsConfigDict(env_prefix="BERT_EXPORT_", extra="forbid", allow_inf_nan=False)

    checkpoint: Path | None = Field(
        None, description="folder to export: a checkpoint in Hugging Face's format, or a LoRA adapter"
    )
    out: Path = Field(description="folder to write; with --demo the folder that gets one for each model")
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        AUTO,
        description="fp32 and int8 are for the CPU, fp16 is for CUDA; auto takes the fastest here that is near enough",
    )
    base: Path | None = Field(None, description="an adapter's base; by default its task.json names it")
    name: str = Field("", description="the model's name in the service; empty takes the folder's")
    version: str = Field("1", description="the model's version in the service")
    dev: Path | None = Field(
        None, description="labelled data to score before and after: GLUE tsv, CoNLL columns, SQuAD json"
    )
    dev_limit: int | None = Field(None, ge=1, description="examples of it to use; by default all")
    overwrite: bool = Field(False, description="replace a bundle that is there")
    demo: bool = Field(
        False, description="export every model of --models that has no current bundle in --out"
    )
    models: Path = Field(Path("models"), description="with --demo: the folder of the models")
    tolerance_difference: float | None = Field(
        None, ge=0, description="largest difference of a score; by default 1e-4 in fp32, 1e-2 in fp16"
    )
    tolerance_neighbours: float | None = Field(
        None,
        ge=0,
        description="largest difference that other texts may make; by default 1e-5, fp16 1e-2, int8 1e-3",
    )
    tolerance_labels: float = Field(
        0.995, ge=0, le=1, description="int8: share of texts whose top label must stay"
    )
    tolerance_score_drop: float = Field(
        0.005, ge=0, le=1, description="most of the score on --dev that may be lost"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> "ExportSettings":
        if self.demo == (self.checkpoint is not None):
            raise ValueError("give either --checkpoint FOLDER or --demo")
        if self.demo and (self.dev or self.name or self.base):
            raise ValueError("--demo takes no --dev, --name or --base")
        return self

    def tolerance_of(self, precision: str) -> Tolerance:
        """Return a precision's tolerances, its own where none is set."""
        return Tolerance.of(
            precision,
            self.tolerance_difference,
            self.tolerance_neighbours,
            self.tolerance_labels,
            self.tolerance_score_drop,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; returns 0, 1 if it failed (nothing is left behind), or 2 for settings that break a rule."""
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            where = "".join(f"--{str(part).replace('_', '-')}: " for part in item["loc"])
            given = f" (given: {item['input']!r})" if isinstance(item["input"], str) else ""
            say(f"bert-export: {where}{item['msg'].removeprefix('Value error, ')}{given}")
        return _usage()
    except SettingsError as error:
        say(f"bert-export: {str(error).removeprefix('error parsing CLI: ')}")
        return _usage()
    try:
        _export(settings)
    except BertError as error:
        say(f"bert-export: {error}")
        return FAILED
    return 0


def _export(settings: ExportSettings) -> None:
    if settings.demo:
        build_demo(settings.models, settings.out, settings.precision, settings.tolerance_of)
        return
    # Imported here: --help and --demo with nothing to do need no onnx.
    from model_export.export import export

    assert settings.checkpoint is not None
    bundle = export(
        settings.checkpoint,
        settings.out,
        settings.precision,
        tolerance_of=settings.tolerance_of,
        base=settings.base,
        dev=settings.dev,
        dev_limit=settings.dev_limit,
        name=settings.name,
        version=settings.version,
        made_by=made_by(),
        overwrite=settings.overwrite,
    )
    say(f"{bundle.folder} is ready; serve it with: bert-serve --bundles {bundle.folder}")


def read_settings(arguments: Sequence[str]) -> ExportSettings:
    """Read settings, the command line over the environment.

    Raises SettingsError and pydantic's ValidationError for what is wrong.
    """
    source: CliSettingsSource[Any] = CliSettingsSource(
        ExportSettings,
        cli_prog_name="bert-export",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
    )
    return ExportSettings(_cli_settings_source=source(args=list(arguments)))


def _usage() -> int:
    say("`bert-export --help` lists every setting")
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
