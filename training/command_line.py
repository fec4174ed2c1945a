"""One way for all of this package's commands to read settings and to end: YAML, environment, command line."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from bert.errors import BertError
from bert.setting_names import UNKNOWN, no_such_setting, with_suggestions
from training.core.signals import RunStopped

S = TypeVar("S", bound=BaseSettings)
USAGE_ERROR = 2
"""Exit code for an option that there is not, as argparse has it."""
_OF_ARGPARSE = "error parsing CLI: "


class CommandSettings(BaseSettings):
    """What one of the commands is told. Names that are not known are refused, and numbers that are not finite."""

    model_config = SettingsConfigDict(env_nested_delimiter="__", extra="forbid", allow_inf_nan=False)


class SettingsPart(BaseModel):
    """A group of settings inside of others, with the same rules."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def read_settings(settings_class: type[S], program: str, arguments: list[str] | None = None) -> S:
    """Read settings: command line over environment over the YAML file that `--config` names, or `<prefix>CONFIG`.

    Raises SettingsError and pydantic's ValidationError for what is wrong; an option that there is not ends the command.
    """
    given = sys.argv[1:] if arguments is None else arguments
    file = _yaml_file(given, str(settings_class.model_config.get("env_prefix", "")) + "CONFIG")

    options: list[str] = []

    class Settings(settings_class):  # type: ignore[misc, valid-type]
        __doc__ = settings_class.__doc__

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            command = CliSettingsSource[Any](
                settings_cls,
                cli_prog_name=program,
                cli_kebab_case=True,
                cli_implicit_flags=True,  # --resume and --no-resume
                cli_exit_on_error=False,
            )
            options.extend(command.root_parser._option_string_actions)
            yaml = YamlConfigSettingsSource(settings_cls, yaml_file=file)
            return command(args=given), env_settings, yaml

    try:
        settings: S = Settings()
    except ValidationError as error:
        note_unknown(error, settings_class)
        raise
    except SettingsError as error:
        if not str(error).startswith(_OF_ARGPARSE):
            raise
        message = with_suggestions(str(error).removeprefix(_OF_ARGPARSE), options)
        print(f"error: {message}\n`{program} --help` lists every setting", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None
    return settings


def note_unknown(error: ValidationError, settings_class: type[BaseModel]) -> None:
    """Note at an error what was meant by each name that the settings do not have; `wrong_settings` tells it."""
    for item in error.errors(include_url=False):
        if item["type"] in UNKNOWN:
            error.add_note(f"{_name(item['loc'])}{no_such_setting(settings_class, item['loc'])}")


def fill_in(kind: type[BaseSettings], saved: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the settings of a save as this version of `kind` writes them: what it did not know yet, at its default.

    `others` are settings that `kind` must have and a save has not.
    """
    known = {name: value for name, value in saved.items() if name in kind.model_fields}
    try:
        # Not by calling the class, which would look into the environment too.
        filled = kind.model_validate({**others, **known})
    except ValidationError:
        return dict(saved)
    return {**saved, **filled.model_dump(mode="json")}


def _yaml_file(arguments: list[str], variable: str) -> Path | None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    named = {"--config": finder.parse_known_args(arguments)[0].config}
    # The names of the other settings may be in small letters too.
    named |= {name: value for name, value in os.environ.items() if name.upper() == variable}
    origin, file = next(((origin, file) for origin, file in named.items() if file), ("", None))
    if file and not Path(file).is_file():
        raise SettingsError(f"{origin} names {file}, and there is no such file")
    if file:
        _check_yaml(Path(file))
    return Path(file) if file else None


def _check_yaml(file: Path) -> None:
    """Say in a sentence what pydantic's reader would end in a traceback for."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise SettingsError(f"{file} holds a {type(content).__name__}; settings are lines of name: value")
    if strange := next((name for name in content or {} if not isinstance(name, str)), None):
        raise SettingsError(f"{file} has {strange!r} where the name of a setting should be")


INTERRUPTED = 130
"""Exit code after Ctrl-C, as a shell has it (128 + SIGINT)."""


def run(body: Callable[[], object]) -> None:
    """Run a command's body; what a user did wrong ends in one clear sentence and exit code 1.

    A stop that was asked for ends in its signal's code (130, 143): a script must not take it for the end.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        body()
    except RunStopped as stopped:
        if str(stopped):
            print(stopped, file=sys.stderr)
        raise SystemExit(stopped.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except ValidationError as error:
        raise SystemExit("error: settings are wrong\n  " + "\n  ".join(wrong_settings(error))) from None
    except (BertError, SettingsError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def wrong_settings(error: ValidationError) -> list[str]:
    """Return a line for each wrong setting: its name, the rule, and what was given where that is one value."""
    notes: list[str] = getattr(error, "__notes__", [])
    items = [item for item in error.errors(include_url=False) if not notes or item["type"] not in UNKNOWN]
    return [*notes, *(_line(item["loc"], item["msg"], item["input"]) for item in items)]


def _name(place: tuple[int | str, ...]) -> str:
    """Return a place as the start of a line. A rule over several settings stands at none of them."""
    return f"{'.'.join(map(str, place))}: " if place else ""


def _line(place: tuple[int | str, ...], message: str, given: object) -> str:
    value = f" (given: {given!r})" if isinstance(given, str | int | float) else ""
    return f"{_name(place)}{message.removeprefix('Value error, ')}{value}"
