"""Settings from the command line, over the environment, over a YAML file."""

import argparse
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from bert.errors import ConfigError
from bert.processor import instructions, processor_name
from bert.setting_names import no_such_setting, with_suggestions
from service.settings import ServeSettings, read_yaml

METAVARS = {
    "bundles": "DIR,DIR...",
    "default_models": "TASK=NAME,...",
    "api_key": "KEY",
    "host": "ADDRESS",
    "ready_when": None,
    "log_level": None,
    "log_format": None,
}
SECRETS = ("api_key",)
USAGE_ERROR = 2
"""Exit code for settings that break a rule."""


class SettingsRefusedError(Exception):
    """Settings that break a rule: a line for each."""

    def __init__(self, lines: Sequence[str]) -> None:
        """`lines` name the setting, the rule and the value."""
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class Command:
    """What the command line asks for."""

    settings: ServeSettings
    tune: bool
    """To measure and print instead of serving."""


def load_settings(arguments: Sequence[str]) -> ServeSettings:
    """Return the settings; raises SettingsRefusedError, or SystemExit 0 after --help."""
    return read_command(arguments).settings


def read_command(arguments: Sequence[str]) -> Command:
    """Return the settings and what to do with them; raises as `load_settings` does."""
    try:
        source, parsed = _command_line(arguments)
        values = read_yaml(parsed.config) if parsed.config is not None else {}
        return Command(ServeSettings(_cli_settings_source=source, **values), parsed.tune)
    except ValidationError as error:
        raise SettingsRefusedError([_line(item) for item in error.errors(include_url=False)]) from None
    except (SettingsError, ConfigError) as error:
        raise SettingsRefusedError([str(error).removeprefix("error parsing CLI: ")]) from None


def _command_line(
    arguments: Sequence[str],
) -> tuple[CliSettingsSource[argparse.ArgumentParser], argparse.Namespace]:
    """Return the source of settings, and what stands beside them: config and tune."""
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(
        ServeSettings,
        cli_prog_name="bert-serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        cli_parse_none_str="none",
    )
    parser = source.root_parser
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="YAML file of settings, by the same names."
    )
    parser.add_argument(
        "--tune", action="store_true", help="Measure the models on this machine, print it, and end."
    )
    parser.add_argument(
        "--version",
        action="version",
        version=_version(),
        help="Print the version and what it runs on, and end.",
    )
    _tidy(parser)
    try:
        parsed = parser.parse_args(list(arguments))
    except SettingsError as error:
        raise SettingsError(
            with_suggestions(str(error).removeprefix("error parsing CLI: "), parser._option_string_actions)
        ) from None
    beside = argparse.Namespace(config=parsed.config, tune=parsed.tune)
    del parsed.config, parsed.tune
    return source(parsed_args=parsed), beside


def _version() -> str:
    """Return this program's version, ONNX Runtime's, and the processor's instructions."""
    found = []
    for name in ("bert-train-serve", "onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(
        [*found, f"Python {platform.python_version()}", f"{processor_name()} ({instructions()})"]
    )


def _tidy(parser: argparse.ArgumentParser) -> None:
    """Show units and shapes where the help has Python types, and the environment's names."""
    parser.usage = "bert-serve [--tune] [--config FILE] [--SETTING VALUE ...]"
    parser.epilog = (
        "Each is a name in the YAML file (max_body_bytes) and in the environment too "
        "(BERT_SERVE_MAX_BODY_BYTES). "
        "The command line wins over the environment, that over the file. docs/configuration.md says more."
    )
    for action in parser._actions:  # argparse has no public way to them
        if action.dest in METAVARS:
            action.metavar = METAVARS[action.dest]
        elif isinstance(action.metavar, str):
            action.metavar = {"int": "N", "float": "X"}.get(action.metavar, action.metavar)
        if action.help and action.help.endswith(("(default: none)", "(default: {})")):
            action.help = action.help.rpartition(" (default:")[0]
        elif action.dest == "bundles" and action.help:
            action.help = action.help.replace("[PosixPath('bundles')]", "bundles")


def _line(item: Any) -> str:
    """Return one validation error as a line: which setting, what is wrong, what was given."""
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{name}: {no_such_setting(ServeSettings, item['loc'])}"
    message = str(item["msg"]).removeprefix("Value error, ")
    given = "" if name in SECRETS else f" (given: {item['input']!r})"
    return f"{name}: {message[:1].lower()}{message[1:]}{given}"
