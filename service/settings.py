"""Every limit of the service. `python -m service.settings` writes docs/configuration.md."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from bert.settings import CommandSettings
from bert.tasks.spec import TASK_NAMES

ENV_PREFIX = "BERT_SERVE_"
HOUR_S = 3600
"""No duration is longer: one that never ends is a service that never stops."""
KEY = re.compile(r"[!-~]+")
"""What every client can send in a header: visible ASCII."""


class ServeSettings(CommandSettings):
    """Serve BERT bundles over HTTP: /classify /ner /similarity /qa /embed /fill-mask /tokenize."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_prog_name="bert-serve",
        env_parse_none_str="none",
        cli_parse_none_str="none",
    )
    metavars: ClassVar[Mapping[str, str]] = {
        "bundles": "DIR,DIR...",
        "default-models": "TASK=NAME,...",
        "api-key": "KEY",
        "host": "ADDRESS",
    }

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all of this machine's.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    bundles: Annotated[list[Path], NoDecode] = Field(
        default=[Path("bundles")],
        min_length=1,
        description="Bundle folders, or folders of bundles, separated by commas.",
    )
    default_models: Annotated[dict[str, str], NoDecode] = Field(
        default={},
        description="The model that answers where a request names none: task=name, separated by "
        "commas. Default: the "
        "first of each task in the order of `bundles`, and in a folder of bundles the one that was there first.",
    )
    verify_hashes: bool = Field(True, description="Check each bundle's files against its manifest at start.")
    strict: bool = Field(
        False,
        description="Fail the start if a bundle cannot be served. Otherwise it is left out: the log, `/models` and "
        "`bert_model_left_out` say why, and its requests get 503.",
    )
    ready_when: Literal["any", "all"] = Field(
        "any",
        description="When `/health/ready` answers 200: while any model can answer, or only while all can and no bundle was "
        "left out. `/health/ready?model=NAME` tells of one.",
    )

    api_key: SecretStr | None = Field(
        None,
        min_length=8,
        description="If set, requests need it as `Authorization: Bearer KEY` or `X-API-Key: KEY`; "
        "/health, /metrics and "
        "/docs stay open. Set it by environment: a command line can be read by others.",
    )
    max_body_bytes: int = Field(2**21, ge=1, description="Largest request body, bytes; above it 413.")
    max_texts_per_request: int = Field(
        512, ge=1, description="Most texts in one request, all fields together; above it 422."
    )
    max_queue_tokens: int | None = Field(
        None,
        ge=512,
        description="Most tokens that wait for the engine; a request that would pass it gets 429 with "
        "Retry-After, one that is larger by itself 413. Default: what the engine, by its speed at start, does in "
        "`request_timeout_ms`, from 16384 to 1048576.",
    )
    request_timeout_ms: int = Field(
        30_000,
        ge=1,
        le=1000 * HOUR_S,
        description="A request is given up after so long, milliseconds (504). X-Timeout-Ms may ask for less.",
    )
    body_timeout_ms: int = Field(
        10_000,
        ge=1,
        le=1000 * HOUR_S,
        description="A request's head, and then its body, must have arrived after so long, milliseconds (408).",
    )
    answer_timeout_ms: int = Field(
        30_000,
        ge=1,
        le=1000 * HOUR_S,
        description="A client that has not read its answer after so long, milliseconds, loses its connection.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        le=HOUR_S,
        description="An idle connection, one that sent nothing too, is closed after so many seconds.",
    )
    max_connections: int = Field(
        900,
        ge=1,
        description="Most open connections, in each process that speaks HTTP; above it 503, except for /health and "
        "/metrics. The limit of open files (`ulimit -n`) must be higher by about 100.",
    )
    backlog_connections: int = Field(
        2048, ge=1, le=65_535, description="Connections that the system holds until they are accepted."
    )
    drain_s: float = Field(
        0.0,
        ge=0,
        le=HOUR_S,
        description="After SIGTERM /health/ready says 503 for so many seconds while requests are still "
        "taken, so that a "
        "load balancer can turn away first.",
    )
    shutdown_grace_s: int = Field(
        30, ge=0, le=HOUR_S, description="Then requests in flight may take so many seconds to finish."
    )

    frontends: int | None = Field(
        None,
        ge=0,
        le=256,
        description="Processes that speak HTTP, beside one with the engine, which is started again when it dies and then "
        "runs again what it had; 0 does everything in one process. Default: one for every 8 cores, at least 1; 0 where "
        "there is no folder for temporary files, or no POSIX.",
    )
    hung_after_s: float = Field(
        5.0,
        ge=3,
        le=HOUR_S,
        description="A process that gives no sign of life for so many seconds is killed and started again, and so is the "
        "engine's when a batch takes so long; 20 times its slowest batch, as measured, if that is longer.",
    )
    load_timeout_s: int = Field(
        600,
        ge=1,
        le=HOUR_S,
        description="An engine process that has not loaded its models after so many seconds ends; at the first start the "
        "service ends with 1, later the process is started again. Not with `frontends: 0`.",
    )
    engine_slots: int | None = Field(
        None,
        ge=1,
        description="Batches that run at once, for all models together. Default: one a core, on a GPU two.",
    )
    engine_wide: bool = Field(
        True,
        description="A text that has the engine to itself may use the cores of several slots, where that was measured "
        "to be faster. It takes a second session a model: its memory twice, but for the embedding tables. Not for models "
        "over 512 MiB.",
    )
    engine_captures: bool = Field(
        True,
        description="On a GPU, small batches are captured as CUDA graphs at start, and replayed where that is right and "
        "faster. It takes the weights a second time on the GPU.",
    )
    engine_threads_per_slot: int | None = Field(
        None,
        ge=1,
        description="Threads of one batch. Slots times threads must not pass the cores. Default: cores "
        "/ slots.",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in a batch. Default: measured at start, where more stops being faster.",
    )
    keep_tuning: bool = Field(
        True,
        description="Keep what is measured at start in NAME.tuning.json beside the bundle NAME, an entry for each kind of "
        "machine, and read it from there; where that cannot be written it is measured at each start. `bert-serve --tune` "
        "measures for longer and keeps that instead.",
    )
    tokenizer_threads: int | None = Field(
        None, ge=1, description="Threads that tokenise. Default: the cores, at most 4."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines for people, or JSON for collectors."
    )
    access_log: bool = Field(False, description="Log a line for each request.")

    @field_validator("bundles", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        items = [value] if isinstance(value, str | Path) else value
        if not isinstance(items, list | tuple):
            return value
        return [part for item in items for part in str(item).split(",") if part]

    @field_validator("default_models", mode="before")
    @classmethod
    def _split_pairs(cls, value: object) -> object:
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.split(",") if part]
            if not all(name for _, _, name in pairs):
                raise ValueError("write task=name, separated by commas")
            return {task: name for task, _, name in pairs}
        return value

    @field_validator("api_key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not KEY.fullmatch(value.get_secret_value()):
            raise ValueError(
                "may hold letters, digits and punctuation of ASCII only, so that a header can carry it"
            )
        return value

    @field_validator("default_models")
    @classmethod
    def _check_tasks(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set(TASK_NAMES))
        if unknown:
            raise ValueError(f"no such task: {', '.join(unknown)}; known are {', '.join(TASK_NAMES)}")
        return value


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return the variables that look like settings and are none."""
    known = {(ENV_PREFIX + name).upper() for name in ServeSettings.model_fields}
    return sorted(
        name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known
    )


def markdown() -> str:
    """Return docs/configuration.md."""
    rows = [
        f"| `{name}` | {_default(name)} | {field.description} |"
        for name, field in ServeSettings.model_fields.items()
    ]
    return "\n".join((_INTRODUCTION, *rows, ""))


def _default(name: str) -> str:
    default = ServeSettings.model_fields[name].default
    match default:
        case None:
            return ""
        case list():
            return f"`{','.join(map(str, default))}`"
        case bool():
            return f"`{str(default).lower()}`"
        case dict():
            return ""
        case _:
            return f"`{default}`"


_INTRODUCTION = """\
# Configuration of the service

This page is made by `python -m service.settings > docs/configuration.md`; a test fails when it is old.

Each setting can be given on the command line (`--max-body-bytes 1000000`), in the environment
(`BERT_SERVE_MAX_BODY_BYTES=1000000`) or in a YAML file (`max_body_bytes: 1000000`, read by
`bert-serve --config FILE`). The command line wins over the environment, and that over the file.
Units are in the names. `none` leaves a setting to its default. A value that breaks a rule stops the
start with exit code 2 and a line that says which and why.

| setting | default | meaning |
|---|---|---|"""

if __name__ == "__main__":
    print(markdown(), end="")
