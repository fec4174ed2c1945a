"""Every limit of the service. `python -m service.settings` writes docs/configuration.md."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from bert.settings import CommandSettings
from bert.tasks.spec import TASK_NAMES

ENV_PREFIX = "BERT_SERVE_"
CANARY = "name=version:share"
"""Form of the settings `canary` and `shadow`."""
HOUR_S = 3600
"""No duration is longer: one that never ends is a service that never stops."""
WIRES = ("openai", "tei", "rerank", "huggingface", "oip", "cloud", "gliner", "nemo", "cohere", "vllm")
"""Wires of other servers' clients, by their names in the setting `wires`."""
MAX_RESPONSE_BYTES = 2**25
"""16 times the largest request body, by default. To write twice as much would hold an event loop for over 20 ms."""
LABEL_CACHE_BYTES = 2**25
MIN_KEY_CHARACTERS = 8
KEY = re.compile(r"[!-~]+")
"""What every client can send in a header: visible ASCII."""


class ServeSettings(CommandSettings):
    """Serve BERT bundles over HTTP: /classify /ner /similarity /rerank /qa /embed /multiple-choice /fill-mask /tokenize."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_prog_name="bert-serve",
        env_parse_none_str="none",
        cli_parse_none_str="none",
    )
    metavars: ClassVar[Mapping[str, str]] = {
        "bundles": "DIR,DIR...",
        "model": "NAME,NAME...",
        "default-models": "TASK=NAME,...",
        "default-versions": "NAME=VERSION,...",
        "canary": "NAME=VERSION:SHARE,...",
        "shadow": "NAME=VERSION:SHARE,...",
        "wires": "WIRE,WIRE...",
        "api-key": "KEY",
        "admin-api-key": "KEY",
        "host": "ADDRESS",
        "cors-origins": "SITE,SITE...",
        "forwarded-allow-ips": "ADDRESS,NETWORK...",
        "otel-endpoint": "URL",
    }

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all of this machine's.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    uds: Path | None = Field(
        None,
        description="Unix socket to listen on in place of `host` and `port`, which then hold for `admin_port` only.",
    )
    uds_mode: str = Field(
        "660",
        pattern=r"^[0-7]{3}$",
        description="Who may connect to `uds`: permissions of the file, in octal.",
    )
    ssl_certfile: Path | None = Field(
        None,
        description="Certificate chain in PEM: the service then speaks HTTPS, on all its ports. Read again when it changes.",
    )
    ssl_keyfile: Path | None = Field(
        None,
        description="Private key of `ssl_certfile`, without a passphrase. Default: it is in that file too.",
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[^/?#]+)*$",
        description="Path under which a proxy serves the service and passes requests on, such as /bert. Not needed where "
        "the proxy takes it off.",
    )
    cors_origins: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Sites whose pages may call the service from a browser, separated by commas, such as "
        "https://app.example; `*` for any. Default: none.",
    )
    forwarded_allow_ips: str | None = Field(
        None,
        description="Proxies whose X-Forwarded-For names the client: addresses and networks, separated by commas, and "
        "`unix` for those at `uds`. Default: none, the client is who connects.",
    )
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Second port of the same `host`, for operators: it has everything, and /metrics and the management of "
        "models are then gone from `port`. Default: all on one port.",
    )
    bundles: Annotated[list[Path], NoDecode] = Field(
        default=[Path("bundles")],
        min_length=1,
        description="Bundle folders, or folders of bundles, separated by commas; URLs of an object store too, such as "
        "s3://bucket/models (docs/howto/bucket.md). With `model` there is no default.",
    )
    model: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Models of the hub (`org/name`, `org/name@revision`) or checkpoint folders, separated by commas. "
        "Each is exported at its first start. Requests call it by the last part of its name, or by another: "
        "`NAME=org/name`. See docs/hub.md.",
    )
    model_precision: Literal["auto", "fp32", "fp16", "int8"] = Field(
        "auto",
        description="Precision of `model`'s exports, as `bert-export --precision` takes it. With auto and no CUDA a model "
        "is served in float32 at once, and in 8 bits when that is exported.",
    )
    model_cache: Path = Field(
        default=Path("~/.cache/bert-serve"),
        description="Folder where the exports of `model` are kept, and what was fetched from object stores. Default: under "
        "XDG_CACHE_HOME if that is set.",
    )
    update_models: bool = Field(
        False,
        description="Ask the hub whether `model`'s branches and tags have moved, and export again what has. Otherwise a "
        "model that was exported before starts without the network.",
    )
    watch_bundles_s: float = Field(
        0.0,
        ge=0,
        le=HOUR_S,
        description="Seconds between two looks at the folders of bundles, and at URLs. What has changed, or is new, is "
        "loaded once its files have been the same for that long. 0: only on SIGHUP or request.",
    )
    keep_generations: int = Field(
        1,
        ge=0,
        le=100,
        description="Versions of each model before the one that is served, to which it can be rolled back. They are copied "
        "to the folder `generations` of `model_cache`, with `watch_bundles_s` or `admin_api_key`.",
    )
    default_models: Annotated[dict[str, str], NoDecode] = Field(
        default={},
        description="The model that answers requests without `model`: task=name, separated by commas. Default: the "
        "first of each task in the order of `bundles`, and the oldest in a folder of bundles.",
    )
    default_versions: Annotated[dict[str, str], NoDecode] = Field(
        default={},
        description="The version of a model that answers requests for its name: name=version, separated by commas. "
        "Default: the highest. Any version that is loaded can be asked for as `name@version`.",
    )
    canary: Annotated[dict[str, str], NoDecode] = Field(
        default={},
        description="The share of the requests for a name that another version answers: name=version:share, separated by "
        "commas, as in `ner=3:0.05`.",
    )
    shadow: Annotated[dict[str, str], NoDecode] = Field(
        default={},
        description="The share of the requests for a name that another version reads too, once they are answered, to "
        "compare its labels: name=version:share. Requests of other wires are not compared.",
    )
    verify_hashes: bool = Field(True, description="Check each bundle's files against its manifest at start.")
    strict: bool = Field(
        False,
        description="Fail the start if a bundle cannot be served. Otherwise it is left out: its requests get 503, and "
        "the log, `/models` and `bert_model_left_out` give the reason.",
    )
    ready_when: Literal["any", "all"] = Field(
        "any",
        description="When `/health/ready` answers 200: while any model can answer, or only while all can and no bundle "
        "was left out. `/health/ready?model=NAME` asks about one.",
    )

    page: bool = Field(
        True,
        description="Serve a page to try the models at `/` and one that shows the running service at `/status`. Without "
        "it `/` leads to /docs.",
    )
    api_key: SecretStr | None = Field(
        None,
        description="If set, requests need `Authorization: Bearer KEY` or `X-API-Key: KEY`; /health, /metrics, /docs "
        "and the pages stay open. At least 8 characters. Set it in the environment: other users can read a command line.",
    )
    api_keys_file: Path | None = Field(
        None,
        description="YAML or JSON file of named keys, each with its models, limits and share of the queue, beside "
        "`api_key` or in its place. It is read again when it changes. See docs/howto/keys.md.",
    )
    admin_api_key: SecretStr | None = Field(
        None,
        description="If set, a request with this key may load, unload and roll back models: `POST /models/NAME/load` and "
        "Triton's repository API. Without it they get 403. Sent and written as `api_key`.",
    )
    wires: Annotated[list[str], NoDecode] = Field(
        default=["all"],
        description="Wires of other servers' clients that are served beside this service's own (docs/wires.md): "
        "openai, tei, rerank, huggingface, oip, cloud, gliner, nemo, cohere and vllm, separated by commas; or all, or none.",
    )
    max_body_bytes: int = Field(2**21, ge=1, description="Largest request body in bytes; above it 413.")
    max_response_bytes: int = Field(
        MAX_RESPONSE_BYTES,
        ge=1,
        description="Largest response of a task in bytes, by an estimate before it is written; a request for more gets 422.",
    )
    max_bodies_bytes: int | None = Field(
        None,
        ge=1,
        description="Most bytes that the bodies of all requests hold in memory, in each process that speaks HTTP; above "
        "it 503 with Retry-After. The first 16 KiB of each body are not counted, so a small request never gets it. At "
        "least 2 × `max_body_bytes`. Default: 64 × `max_body_bytes`, and 1 MiB at least.",
    )
    max_texts_per_request: int = Field(
        512, ge=1, description="Most texts in one request, all fields together; above it 422."
    )
    stream_timeout_ms: int = Field(
        3_600_000,
        ge=1,
        le=24_000 * HOUR_S,
        description="Time for all lines of a request in `application/x-ndjson`, in milliseconds; each has "
        "`request_timeout_ms` besides. Then its last line is a 504.",
    )
    stream_spool_bytes: int = Field(
        2**29,
        ge=2**20,
        description="Most bytes of all such requests of a frontend together that wait in a temporary file (under TMPDIR) "
        "until they are read. One request has at most half of it, and less beside others; past its share the service reads "
        "no further than it answers.",
    )
    label_cache_bytes: int = Field(
        LABEL_CACHE_BYTES,
        ge=0,
        description="Most bytes of labels' vectors that a process which speaks HTTP keeps, for models whose labels have an "
        "encoder of their own; a label takes 4 bytes a number of its vector, 4 a character and 500. 0 keeps none.",
    )
    max_queue_tokens: int | None = Field(
        None,
        ge=512,
        description="Most tokens that wait for the engine. A request that would exceed it gets 429 with Retry-After; "
        "one that is larger by itself 413. Default: what the engine does in `request_timeout_ms`, by its "
        "speed at start, from 16384 to 1048576.",
    )
    request_timeout_ms: int = Field(
        30_000,
        ge=1,
        le=1000 * HOUR_S,
        description="Time for a request in milliseconds, then 504. X-Timeout-Ms may ask for less.",
    )
    body_timeout_ms: int = Field(
        10_000,
        ge=1,
        le=1000 * HOUR_S,
        description="Time for a request's head to arrive, and then for its body, in milliseconds; then 408.",
    )
    answer_timeout_ms: int = Field(
        30_000,
        ge=1,
        le=1000 * HOUR_S,
        description="Time for a client to read its response, in milliseconds; then its connection is closed.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        le=HOUR_S,
        description="Time in seconds after which an idle connection is closed, also before its first request.",
    )
    max_connections: int = Field(
        900,
        ge=1,
        description="Most open connections of each process that speaks HTTP; above it 503, except for /health and "
        "/metrics. The limit of open files (`ulimit -n`) must be higher by 100: it is raised at start as far as the system "
        "allows, and else fewer connections are served.",
    )
    backlog_connections: int = Field(
        2048, ge=1, le=65_535, description="Connections that the system holds until they are accepted."
    )
    drain_s: float = Field(
        0.0,
        ge=0,
        le=HOUR_S,
        description="Time in seconds after SIGTERM in which requests are still taken while /health/ready says 503, so "
        "that a load balancer can turn away first.",
    )
    shutdown_grace_s: int = Field(
        30, ge=0, le=HOUR_S, description="Time in seconds for requests in flight to finish after `drain_s`."
    )

    frontends: int | None = Field(
        None,
        ge=0,
        le=256,
        description="Processes that speak HTTP. One more process holds the engine; if it dies, a new one runs its "
        "requests again. 0 does everything in one process. Default: one for every 8 cores, at least 1; 0 "
        "without a folder for temporary files, or without POSIX.",
    )
    hung_after_s: float = Field(
        5.0,
        ge=3,
        le=HOUR_S,
        description="Silence in seconds after which a process is killed and restarted. A batch of the engine may take "
        "as long, or 20 times the slowest batch measured, if that is longer; with a text longer than a full batch, "
        "`request_timeout_ms` more.",
    )
    load_timeout_s: int = Field(
        600,
        ge=1,
        le=HOUR_S,
        description="Time in seconds for the engine process to load its models. After it the process ends: at the "
        "first start the service exits with 1, later the process is restarted. Not with `frontends: 0`. A model that is "
        "loaded while the service runs has as long.",
    )
    engine_slots: int | None = Field(
        None,
        ge=1,
        description="Batches that run at once, for all models together. Default: one per core, on a GPU two.",
    )
    engine_wide: bool = Field(
        True,
        description="A text that has the engine to itself may use the cores of several slots, where that was measured "
        "to be faster. Each model then has a second session and takes twice its memory, except for the "
        "embedding tables. Not for models over 512 MiB.",
    )
    engine_captures: bool = Field(
        True,
        description="On a GPU, capture small batches as CUDA graphs at start, and replay those that are right and "
        "faster. It takes the weights a second time on the GPU.",
    )
    engine_threads_per_slot: int | None = Field(
        None,
        ge=1,
        description="Threads of one batch. Slots times threads must not exceed the cores. Default: cores / slots.",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in a batch. Default: measured at start, where larger batches stop being faster.",
    )
    keep_tuning: bool = Field(
        True,
        description="Keep the speeds measured at start in NAME.tuning.json beside the bundle NAME, one entry per kind "
        "of machine, and read them at the next start. Where the file cannot be written, each start "
        "measures. `bert-serve --tune` measures for longer and replaces the entry.",
    )
    tokenizer_threads: int | None = Field(
        None, ge=1, description="Threads that tokenise. Default: the cores, at most 4."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines as text for people, or as JSON for collectors."
    )
    access_log: bool = Field(
        False, description="Log a line for each request, not only for those that failed."
    )
    otel_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/].*)?$",
        description="OpenTelemetry collector that gets spans of requests (OTLP over HTTP), such as http://localhost:4318. "
        "It needs the extra `otel` (docs/howto/monitor.md). Default: nothing is sent, whatever OTEL_ variables say.",
    )
    otel_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of the requests without `traceparent` of which spans are sent. One with it is traced if it says "
        "sampled, and not otherwise, whatever the share.",
    )

    sample_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the requests whose texts and results are kept in `sample_dir`, 0 to 1: personal data, where "
        "texts are (docs/operations.md).",
    )
    sample_dir: Path | None = Field(
        None,
        description="Folder of the samples: a file of JSON lines for each model, which bert-finetune reads.",
    )

    _failed_models: dict[str, str] = PrivateAttr(default_factory=dict)
    _better_bundles: dict[Path, Path] = PrivateAttr(default_factory=dict)

    @property
    def failed_models(self) -> dict[str, str]:
        """Models of `model` that could not be exported: name → reason. No setting, but found before the start."""
        return self._failed_models

    @property
    def better_bundles(self) -> dict[Path, Path]:
        """Bundles of `model` that are served until a better one is exported: folder → that one's. No setting either."""
        return self._better_bundles

    @property
    def needs_key(self) -> bool:
        """Tell whether requests need a key."""
        return self.api_key is not None or self.api_keys_file is not None

    def with_exports(
        self, bundles: list[Path], failed_models: dict[str, str], better_bundles: dict[Path, Path]
    ) -> Self:
        """Return the settings with other bundles, the models that could not be exported, and those that will be better."""
        changed = self.model_copy(update={"bundles": bundles})
        changed._failed_models, changed._better_bundles = failed_models, better_bundles
        return changed

    @field_validator("model_cache")
    @classmethod
    def _below_xdg(cls, value: Path) -> Path:
        base = os.environ.get("XDG_CACHE_HOME")
        return Path(base) / "bert-serve" if base and value == Path("~/.cache/bert-serve") else value

    def has_wire(self, name: str) -> bool:
        """Tell whether a wire of WIRES is on."""
        return name in self.wires or "all" in self.wires

    @field_validator("bundles", "model", "cors_origins", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        items = [value] if isinstance(value, str | Path) else value
        if not isinstance(items, list | tuple):
            return value
        return [part for item in items for part in str(item).split(",") if part]

    @field_validator("wires", mode="before")
    @classmethod
    def _split_wires(cls, value: object) -> object:
        if value is None or value == "none":  # elsewhere none means the default, which would be all of them
            return []
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )

    @field_validator("wires")
    @classmethod
    def _check_wires(cls, value: list[str]) -> list[str]:
        unknown = sorted(set(value) - {*WIRES, "all"})
        if unknown:
            raise ValueError(
                f"no such wire: {', '.join(unknown)}; known are {', '.join(WIRES)}, all and none"
            )
        return value

    @field_validator("default_models", "default_versions", "canary", "shadow", mode="before")
    @classmethod
    def _split_pairs(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part]
        if not all(name for _, _, name in pairs):
            forms = {"default_models": "task=name", "default_versions": "name=version"}
            raise ValueError(f"write {forms.get(info.field_name or '', CANARY)}, separated by commas")
        return {key.strip(): name.strip() for key, _, name in pairs}

    @field_validator("canary", "shadow")
    @classmethod
    def _check_canary(cls, value: dict[str, str]) -> dict[str, str]:
        for name, canary in value.items():
            version, _, share = canary.rpartition(":")
            if not version or not re.fullmatch(r"0(\.\d+)?|1(\.0+)?", share):
                raise ValueError(f"{name}={canary}: write {CANARY}, the share from 0 to 1")
        return value

    @field_validator("api_key", "admin_api_key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and "," in value.get_secret_value():
            raise ValueError("is one key and may hold no comma; several keys go into a file (api_keys_file)")
        return value if value is None else check_key(value)

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.admin_port == self.port != 0 and self.uds is None:
            raise ValueError(f"admin_port ({self.admin_port}) must not be port")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        return self

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _check_proxies(cls, value: str | None) -> str | None:
        # Not uvicorn's "*": it would take the header's first address, which clients make up.
        for part in value.split(",") if value else ():
            if part.strip() != "unix":
                ipaddress.ip_network(part.strip())
        return value

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.sample_share > 0 and self.sample_dir is None:
            raise ValueError(f"sample_share ({self.sample_share:g}) needs sample_dir")
        return self

    @model_validator(mode="after")
    def _check_bodies(self) -> Self:
        if self.max_bodies_bytes is not None and self.max_bodies_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_bodies_bytes ({self.max_bodies_bytes}) must be at least 2 × max_body_bytes "
                f"({self.max_body_bytes}), so that a body of any size that is allowed can be read"
            )
        return self

    @field_validator("default_models")
    @classmethod
    def _check_tasks(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set(TASK_NAMES))
        if unknown:
            raise ValueError(f"no such task: {', '.join(unknown)}; known are {', '.join(TASK_NAMES)}")
        return value


def check_key(key: SecretStr) -> SecretStr:
    """Return a key that is long enough and that a header can carry; raises ValueError for another."""
    if len(key) < MIN_KEY_CHARACTERS:
        raise ValueError(f"must have at least {MIN_KEY_CHARACTERS} characters, not {len(key)}")
    if not KEY.fullmatch(key.get_secret_value()):
        raise ValueError(
            "may hold letters, digits and punctuation of ASCII only, so that a header can carry it"
        )
    return key


def unknown_variables(environ: Iterable[str]) -> list[str]:
    """Return the variables that look like settings and are none."""
    known = {(ENV_PREFIX + name).upper() for name in ServeSettings.model_fields}
    return sorted(
        name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known
    )
