"""`bert-export`: a checkpoint to a bundle, or the demo models to theirs."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from bert.bundle import check_target
from bert.data.examples import LabelledFile
from bert.errors import BertError, ConfigError
from bert.names import check_model_name
from bert.settings import INTERRUPTED, USAGE_ERROR, CommandSettings, SettingsError, read_settings
from model_export.demo import build_demo, made_by
from model_export.progress import say, shown
from model_export.verify.parity import AUTO, Tolerance

FAILED = 1
"""Exit code of an export that was refused."""


def _read_file(value: Any) -> Any:
    """Return the fields of a file from a path, or from json with them."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise ValueError(
                f'is not JSON ({reason}): give a path, or JSON such as {{"path": ...}}'
            ) from None
    return {"path": value} if isinstance(value, str | Path) else value


def _text(value: Any) -> Any:
    """Return a path as text: it may be a name of the hub, whose parts no path may change."""
    return str(value) if isinstance(value, Path) else value


class ExportSettings(CommandSettings):
    """Build a bundle from a checkpoint: the fused ONNX graph, verified against the checkpoint's own answers."""

    model_config = SettingsConfigDict(env_prefix="BERT_EXPORT_", cli_prog_name="bert-export")

    checkpoint: Annotated[str | None, BeforeValidator(_text)] = Field(
        None,
        description="model to export: the folder of a checkpoint in Hugging Face's format or of a LoRA adapter, or a model "
        "of the hub: org/name, org/name@revision",
    )
    out: Path = Field(description="folder to write; with --demo the folder that gets one for each model")
    precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        AUTO,
        description="fp32 and int8 are for the CPU, fp16 is for CUDA; auto takes the fastest here that is near enough",
    )
    base: Annotated[str | None, BeforeValidator(_text)] = Field(
        None,
        description="an adapter's base, a folder or a model of the hub; by default its task.json names it",
    )
    pair: bool | None = Field(
        None, description="classifier: it reads two texts, or with --no-pair one; by default as its files say"
    )
    labels: str | None = Field(
        None,
        description="labels in the order of the head's outputs: A,B,C, or a file with one a line; by default its files'",
    )
    pooling: str | None = Field(
        None,
        description="embeddings: cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken, or several joined by +; "
        "by default as modules.json says, else the mean",
    )
    task: Literal["sparse"] | None = Field(
        None,
        description="sparse: a masked language model gives sparse vectors (SPLADE) instead of filling masks; by default as "
        "its files say",
    )
    max_tokens: int | None = Field(
        None, ge=3, description="longest text in tokens, special ones included; by default as its files say"
    )
    name: str = Field("", description="the model's name in the service; empty takes the folder's")
    version: str = Field("1", description="the model's version in the service")
    dev: Annotated[LabelledFile | None, NoDecode, BeforeValidator(_read_file)] = Field(
        None,
        description="labelled data to score before and after: a path, or {path, format, columns, ...} as "
        "bert-finetune reads it; a field that is left out is as in the checkpoint's training",
    )
    dev_limit: int | None = Field(None, ge=1, description="examples of the --dev file to use; by default all")
    fallback: bool = Field(
        True,
        description="where auto takes int8: also write the float32 graph, which the service takes if the other fails its "
        "self-test",
    )
    parity_texts: Literal["all", "few"] = Field(
        "all",
        description="shipped texts on which the graph is compared with the checkpoint; few of all lengths are enough for "
        "a look at --precision fp32",
    )
    progress_file: Path | None = Field(
        None,
        description="JSON file that is kept up to date while the export runs: step, done (0 to 1), seconds_left; it goes at "
        "the end",
    )
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
    tolerance_labels: float | None = Field(
        None,
        ge=0,
        le=1,
        description="int8: share of labels or answers that must stay, shown with 95% confidence; by default 0.98, of the "
        "words of NER 0.995, of questions and of entities of the request's labels 0.95",
    )
    tolerance_score_drop: float = Field(
        0.005, ge=0, le=1, description="largest drop of the score on --dev, 0 to 1"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> "ExportSettings":
        if self.demo == (self.checkpoint is not None):
            raise ValueError("give either --checkpoint FOLDER_OR_NAME or --demo")
        one = (
            self.dev,
            self.name,
            self.base,
            self.pair,
            self.labels,
            self.pooling,
            self.task,
            self.max_tokens,
        )
        if self.demo and any(value not in (None, "") for value in one):
            raise ValueError(
                "--demo takes no --dev, --name, --base, --pair, --labels, --pooling, --task or --max-tokens"
            )
        if self.parity_texts == "few" and (self.demo or self.precision != "fp32"):
            raise ValueError("--parity-texts few is for --checkpoint with --precision fp32")
        if not self.demo:
            check_model_name(self.name or self.out.name)
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


def read_labels(value: str | None) -> tuple[str, ...] | None:
    """Return the labels of a file, one a line, or of a list A,B,C; None for None. Raises ConfigError."""
    if value is None:
        return None
    try:
        lines = Path(value).read_text("utf-8").splitlines() if Path(value).is_file() else value.split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"labels cannot be read from {value}: {error}") from None
    return tuple(line.strip() for line in lines if line.strip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Export; returns 0, 1 if it failed (nothing is left behind), or 2 for settings that break a rule."""
    try:
        settings = read_settings(ExportSettings, arguments)
    except SettingsError as error:
        say(error.report())
        return USAGE_ERROR
    try:
        with shown(settings.progress_file):
            _export(settings)
    except BertError as error:
        say(f"bert-export: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("bert-export: interrupted; what was not finished is not there")
        return INTERRUPTED
    return 0


def _export(settings: ExportSettings) -> None:
    if settings.demo:
        names = [name for name in ExportSettings.model_fields if name.startswith("tolerance_")]
        given = {name.replace("_", "-"): getattr(settings, name) for name in names}
        options = [f"--{name}={value}" for name, value in given.items() if value is not None]
        build_demo(settings.models, settings.out, settings.precision, options)
        return
    # Imported here: --help and --demo with nothing to do need no onnx.
    from bert.checkpoint.base_models import resolve_checkpoint
    from bert.checkpoint.description import Stated
    from model_export.export import export

    assert settings.checkpoint is not None
    check_target(settings.out, overwrite=settings.overwrite)  # before a download
    bundle = export(
        resolve_checkpoint(settings.checkpoint),
        settings.out,
        settings.precision,
        tolerance_of=settings.tolerance_of,
        base=settings.base,
        stated=Stated(
            settings.pair, settings.pooling, read_labels(settings.labels), settings.max_tokens, settings.task
        ),
        dev=settings.dev,
        dev_limit=settings.dev_limit,
        name=settings.name,
        version=settings.version,
        made_by=made_by(),
        fallback=settings.fallback,
        few_texts=settings.parity_texts == "few",
        overwrite=settings.overwrite,
    )
    how = f"; serve it with: bert-serve --bundles {bundle.folder}"
    say(f"{bundle.folder} is ready{'' if settings.progress_file else how}")


if __name__ == "__main__":
    sys.exit(main())
