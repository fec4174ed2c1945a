"""Settings of every command: the command line wins over the environment, that over a YAML file, that over defaults."""

import difflib
import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import pydantic_settings
import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliSettingsSource, EnvSettingsSource, SettingsConfigDict

from bert.errors import BertError

USAGE_ERROR, INTERRUPTED = 2, 130
"""Exit codes for wrong settings, and after Ctrl-C (128 + SIGINT, as shells have it)."""
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH"}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's error types for an unknown name in a model and in a dataclass."""
_SWITCH_VALUES = {"true", "false", "yes", "no", "on", "off"}
_EMPTY_DEFAULT = re.compile(r" \((default: (none|null|\{\}|\[\]|)|default factory: \w+)\)$")

S = TypeVar("S", bound="CommandSettings")


class CommandSettings(BaseSettings):
    """Base of a command's settings; unknown names and numbers that are not finite are refused.

    A subclass sets `env_prefix` and `cli_prog_name` in its `model_config`.
    """

    model_config = SettingsConfigDict(
        env_nested_delimiter="__",
        extra="forbid",
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_implicit_flags=True,  # --resume and --no-resume
        cli_hide_none_type=True,
        cli_exit_on_error=False,
    )
    metavars: ClassVar[Mapping[str, str]] = {}
    """Option → the shape of its value in `--help`, where the type says too little."""

    positional: ClassVar[str] = ""
    """The arguments without a name, as the line of usage has them."""

    config: Path | None = Field(None, description="YAML file of settings, by the same names.")


class SettingsPart(BaseModel):
    """A group of settings inside of others, with the same rules."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class SettingsError(BertError):
    """Settings that break a rule: a line for each."""

    def __init__(self, program: str, lines: Sequence[str]) -> None:
        """`lines` name the setting, the rule and the value."""
        super().__init__("; ".join(lines))
        self.program, self.lines = program, tuple(lines)

    def report(self) -> str:
        """Return what a command prints before it ends with USAGE_ERROR."""
        last = f"`{self.program} --help` lists every setting"
        return "\n".join(f"{self.program}: {line}" for line in (*self.lines, last))


def read_settings(kind: type[S], arguments: Sequence[str] | None = None) -> S:
    """Return a command's settings. Raises SettingsError, or SystemExit 0 after --help."""
    return read_command(kind, arguments)[0]


def read_command(
    kind: type[S],
    arguments: Sequence[str] | None = None,
    *,
    switches: Mapping[str, str] | None = None,
    version: str = "",
) -> tuple[S, frozenset[str]]:
    """Return a command's settings, and which of its `switches` (name → help) are on. Raises as `read_settings` does."""
    program, switches = _program(kind), switches or {}
    try:
        parsed, command = _parse(kind, sys.argv[1:] if arguments is None else arguments, switches, version)
        switched_on = frozenset(name for name in switches if getattr(parsed, name))
        for name in switches:
            delattr(parsed, name)
        options = command(parsed_args=parsed)()
        given = _merged(options, EnvSettingsSource(kind)())
        origin = "--config" if "config" in options else f"{kind.model_config.get('env_prefix', '')}CONFIG"
        content = _read_yaml(Path(given["config"]), origin) if given.get("config") else {}
        return kind.model_validate(_merged(given, content)), switched_on
    except ValidationError as error:
        raise SettingsError(program, error_lines(error, kind)) from None
    except (pydantic_settings.SettingsError, ValueError) as error:
        raise SettingsError(
            program, [_not_json(error) or str(error).removeprefix("error parsing CLI: ")]
        ) from None


def _not_json(error: Exception) -> str:
    """Return the line for a list or a group of settings that is not JSON; "" for another error."""
    if not isinstance(cause := error.__cause__, json.JSONDecodeError):
        return ""
    field = re.search(r'field "(\w+)"', str(error))
    name = f"{field[1]}: " if field else ""
    return (
        f"{name}{cause.doc!r} is not JSON; lists and groups of settings are JSON on the command line and in the "
        "environment, YAML in --config"
    )


def error_lines(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """Return a line for each wrong setting: its name, the rule, and the value where that is one number or text."""
    return [_error_line(item, kind) for item in error.errors(include_url=False)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the known name that is most like this one, or nothing."""
    plain = {other.replace("-", "_").lower(): other for other in known}
    found = difflib.get_close_matches(name.replace("-", "_").lower(), plain, n=1)
    return f"; did you mean {plain[found[0]]}?" if found else ""


def _program(kind: type[CommandSettings]) -> str:
    return str(kind.model_config.get("cli_prog_name") or kind.__name__)


def _parse(
    kind: type[CommandSettings], arguments: Sequence[str], switches: Mapping[str, str], version: str
) -> tuple[Namespace, CliSettingsSource[Any]]:
    """Return the parsed arguments, and the source that makes settings of them."""
    options: list[str] = []

    def add(parser: ArgumentParser, *names: str, **how: Any) -> Any:
        options.extend(names)
        _improve_help(kind, names, how)
        return ArgumentParser.add_argument(parser, *names, **how)

    source = CliSettingsSource[Any](kind, add_argument_method=add)
    parser: ArgumentParser = source.root_parser
    for name, text in switches.items():
        add(parser, f"--{name}", action="store_true", help=text)
    if version:
        add(parser, "--version", action="version", version=version, help="Print versions, and end.")
    extra = "".join(f"[--{name}] " for name in switches)
    positional = f"{kind.positional} " if kind.positional else ""
    parser.usage = f"{parser.prog} {positional}{extra}[--config FILE] [--SETTING VALUE ...]"
    parser.epilog = (
        "Each is a name in the YAML file (some_setting) and in the environment too "
        f"({kind.model_config.get('env_prefix', '')}SOME_SETTING). The command line wins over the environment, "
        "that over the file."
    )
    try:
        return parser.parse_args(list(arguments)), source
    except pydantic_settings.SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        is_unknown = message.startswith("unrecognized arguments")
        unknown = re.findall(r"(?<!\S)--[^\s=]+", message) if is_unknown else []
        hints = "".join(did_you_mean(option, options) for option in unknown)
        if is_unknown and not unknown and set(message.lower().split()) & _SWITCH_VALUES:
            hints = "; a switch takes no value: it is --some-setting or --no-some-setting"
        raise SettingsError(_program(kind), [message + hints]) from None


def _improve_help(kind: type[CommandSettings], names: Sequence[str], how: dict[str, Any]) -> None:
    """Show units and shapes where the help has Python types, and no empty defaults."""
    metavar = kind.metavars.get(names[-1].removeprefix("--"))
    if metavar is None and isinstance(how.get("metavar"), str):
        metavar = METAVARS.get(how["metavar"], how["metavar"])
    if metavar is not None and "metavar" in how:
        how["metavar"] = metavar
    if isinstance(how.get("help"), str):
        text = re.sub(r"\[PosixPath\('([^']*)'\)\]", r"\1", how["help"])
        how["help"] = _EMPTY_DEFAULT.sub("", text)


def _read_yaml(file: Path, origin: str) -> dict[str, Any]:
    """Read a settings file that `origin` names; raises ValueError for a file of another form."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{origin} {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{origin} {file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise ValueError(
            f"{origin} {file} holds a {type(content).__name__}; settings are lines of name: value"
        )
    if strange := next((name for name in content or {} if not isinstance(name, str)), None):
        raise ValueError(f"{origin} {file} has {strange!r} where the name of a setting should be")
    if content and "config" in content:
        raise ValueError(f"{origin} {file} has `config`: one settings file cannot name another")
    return content or {}


def _merged(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Put values over others; groups of settings are merged name by name."""
    merged = dict(lower)
    for name, value in upper.items():
        below = lower.get(name)
        both = isinstance(value, dict) and isinstance(below, dict)
        merged[name] = _merged(value, below) if both else value  # type: ignore[arg-type]
    return merged


def _error_line(item: Any, kind: type[BaseModel]) -> str:
    place, given = item["loc"], item["input"]
    name = f"{'.'.join(map(str, place))}: " if place else ""  # a rule over several settings has no place
    if item["type"] in _UNKNOWN:
        return f"{name}there is no such setting{did_you_mean(str(place[-1]), _names_at(kind, place[:-1]))}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if message.startswith("Input "):
        message = f"i{message[1:]}"
    field = kind.model_fields.get(str(place[0])) if place else None
    is_secret = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    is_shown = isinstance(given, str | int | float) and not is_secret
    return f"{name}{message}{f' (given: {given!r})' if is_shown else ''}"


def _names_at(kind: Any, way: Sequence[int | str]) -> Iterator[str]:
    """Yield the names of the settings at a place inside of others."""
    types = _types_of_fields(kind)
    for number, part in enumerate(way):
        if part in types:
            yield from _names_at(types[str(part)], way[number + 1 :])
            return
    yield from types


def _types_of_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of the model or dataclass inside of a type such as `list[DataFile]` or `LoraSettings | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: info.annotation for name, info in kind.model_fields.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return {field.name: field.type for field in fields(kind)}
    return next((found for part in get_args(kind) if (found := _types_of_fields(part))), {})
