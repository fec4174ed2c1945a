"""The commands and settings that the documents show are taken by the programs that they are for."""

import fnmatch
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings

from bert.settings import CommandSettings, SettingsError, read_command, read_settings
from bert_client.transport import KEY_VARIABLE, URL_VARIABLE
from model_export.cli import ExportSettings
from service.bulk.settings import PredictSettings
from service.planning.settings import PlanSettings
from service.settings import ServeSettings
from tests.support.documents import (
    EACH_PAGE,
    PAGES,
    ROOT,
    Command,
    blocks,
    commands,
    inline,
    is_of_commit,
    opening_command,
    scripts,
    text_of,
)
from training.averaging.settings import AverageSettings
from training.corpus.settings import PrepareSettings
from training.evaluation.runs import read_task
from training.evaluation.settings import EvaluateSettings
from training.evaluation.settings import from_command_line as read_evaluate
from training.mining.settings import MineSettings
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings

SETTINGS: dict[str, type[CommandSettings]] = {
    "bert-prepare": PrepareSettings,
    "bert-pretrain": PretrainSettings,
    "bert-finetune": FinetuneSettings,
    "bert-evaluate": EvaluateSettings,
    "bert-average": AverageSettings,
    "bert-mine": MineSettings,
    "bert-export": ExportSettings,
    "bert-predict": PredictSettings,
    "bert-serve": ServeSettings,
}
READERS: dict[str, Callable[[list[str]], object]] = {
    **{
        name: lambda arguments, kind=kind: read_settings(kind, arguments)  # type: ignore[misc]
        for name, kind in SETTINGS.items()
        if name != "bert-serve"
    },
    "bert-evaluate": read_evaluate,
    "bert-serve": lambda arguments: read_command(
        PlanSettings if "--plan" in arguments else ServeSettings,
        arguments,
        switches={"tune": "", "plan": "", "json": ""},
    ),
}
SPELLED_OUT = {"--checkpoint", "--task", "--seed", "--help", "--config", "--tune", "--plan", "--json"}
SPELLED_OUT |= {"--requests", "--requests-per-s", "--p99-ms"}
"""Options that no field of the settings has the name of."""
OF_OTHERS = {"--no-deps", "--logdir", "--target", "--hypothesis-profile"}
OF_OTHERS |= {"--nnodes", "--max-restarts", "--rdzv-endpoint", "--rdzv-conf", "--local-addr"}
OF_OTHERS |= {"--rdzv-backend", "--rdzv-id"}
"""Options of pip, tensorboard, docker, pytest and torchrun."""
NEEDED = {
    "bert-prepare": ["--sources", "x", "--output-dir", "x"],
    "bert-pretrain": ["--corpus", "x", "--output-dir", "x", "--max-steps", "1"],
    "bert-finetune": ["--task", "ner", "--output-dir", "x"],
    "bert-evaluate": ["--checkpoint", "x", "--task", "x=x.yaml"],
    "bert-average": ["--checkpoints", "x", "--output-dir", "x"],
    "bert-mine": ["--pairs", "x", "--output", "x"],
    "bert-export": ["--checkpoint", "x", "--out", "x"],
    "bert-predict": ["x", "x", "--out", "x"],
    "bert-serve": [],
}
"""What each command never starts without."""
CONFIGS = sorted(ROOT.glob("configs/*.yaml"))
ALL_COMMANDS = [command for page in PAGES for command in commands(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the configurations, and the YAML that pages show under the names that they give it.

    No setting comes from the environment of whoever runs the tests.
    """
    for variable in [name for name in os.environ if name.upper().startswith("BERT_")]:
        monkeypatch.delenv(variable)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml":
                words = opening_command(block.text, page).words
                (tmp_path / words[words.index("--config") + 1]).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(program: str, arguments: list[str]) -> object:
    """Read a command's settings as it does itself; raises for what it refuses."""
    if arguments == ["--help"]:
        return SETTINGS[program]
    settings = READERS[program](arguments)
    if isinstance(settings, EvaluateSettings):
        for name, task in settings.tasks.items():
            if isinstance(task, dict) or task.exists():
                FinetuneSettings(
                    **{**read_task(name, task), **settings.overrides, "base": "x", "output_dir": "x"}
                )
    return settings


def of(*programs: str) -> list[Command]:
    return [command for command in ALL_COMMANDS if command.program in programs]


@pytest.mark.parametrize("command", of(*SETTINGS), ids=str)
def test_a_command_is_read_by_its_settings(command: Command, folder: Path) -> None:
    assert read(command.program, list(command.words[1:]))


@pytest.mark.parametrize("command", of("torchrun"), ids=str)
def test_a_command_of_several_processes_is_read_by_torchrun_and_by_its_settings(
    command: Command, folder: Path
) -> None:
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(command.words[1:])
    assert read(scripts()[parsed.training_script], parsed.training_script_args)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_a_configuration_is_read_by_the_command_that_it_opens_with(file: Path, folder: Path) -> None:
    command = opening_command(text_of(file), file)
    assert command.words[1:] == ("--config", f"configs/{file.name}")
    assert read(command.program, list(command.words[1:]))


def test_every_yaml_of_the_pages_opens_with_a_command_that_reads_it(folder: Path) -> None:
    shown = [opening_command(b.text, page) for page in PAGES for b in blocks(page) if b.language == "yaml"]
    assert shown
    for command in shown:
        assert read(command.program, list(command.words[1:])), command


def test_each_installed_command_is_shown_and_tested() -> None:
    assert set(scripts().values()) == set(SETTINGS) == {c.program for c in ALL_COMMANDS} & set(SETTINGS)


def options(settings: type[BaseSettings]) -> Iterator[str]:
    """Give every option of a command."""
    for name, field in settings.model_fields.items():
        yield f"--{name.replace('_', '-')}"
        if field.annotation in (bool, bool | None):
            yield f"--no-{name.replace('_', '-')}"


def of_source(*patterns: str) -> set[str]:
    """Return the options that programs with a parser of their own name in their source."""
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return {option for file in files for option in re.findall(r'"(--[\w-]+)"', text_of(file))}


@EACH_PAGE
def test_options_inside_sentences_are_options_of_the_command_beside_them(page: Path) -> None:
    every = {option for settings in SETTINGS.values() for option in options(settings)}
    every |= SPELLED_OUT | OF_OTHERS | of_source("benchmarks/**/*.py", "examples/**/*.py", "scripts/*.py")
    for code in [] if is_of_commit(page) else inline(page):
        command = next((name for name in SETTINGS if re.search(rf"(^|/){name} ", code)), None)
        known = {*options(SETTINGS[command]), *SPELLED_OUT} if command else every
        for option in re.findall(r"(?:^|[ =])(--[a-z][\w*-]*)", code):
            assert fnmatch.filter(known, option), f"{page}: `{code}`: no {option}"


def is_read(program: str, arguments: list[str]) -> bool:
    """Tell whether a command takes options, beside those without which it never starts."""
    needed = [] if "--config" in arguments else NEEDED[program]
    try:
        return bool(read(program, [*needed, *arguments]))
    except (SystemExit, ValueError, SettingsError):
        return False


@EACH_PAGE
def test_options_with_values_inside_sentences_are_read(page: Path, folder: Path) -> None:
    others = of_source("benchmarks/**/*.py", "examples/**/*.py", "scripts/*.py") | OF_OTHERS
    for code in [] if is_of_commit(page) else inline(page):
        program, *arguments = shlex.split(code) if re.match(r"(\S*/)?bert-\w+ --|--[\w-]+ ", code) else [""]
        name = Path(program).name
        if not arguments or arguments[-1].startswith("--") or arguments == ["--config", "FILE"]:
            continue
        if name in SETTINGS:
            assert is_read(name, arguments), f"{page}: `{code}`"
        elif program not in others:
            assert any(is_read(each, [program, *arguments]) for each in SETTINGS), f"{page}: `{code}`"


def models(parent: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """Give every class that settings are made of."""
    for model in parent.__subclasses__():
        if model.__module__.startswith(
            ("training.", "model_export.", "service.settings", "service.bulk", "service.planning")
        ):
            yield model
        yield from models(model)


def takes(name: str, value: Any) -> bool:
    """Tell whether a setting of that name (with dots: of that part) takes a value."""
    for model in models():
        field = model.model_fields.get(name.rpartition(".")[2])
        if field is not None:
            kind: Any = Annotated[field.annotation, field]
            try:
                TypeAdapter(kind).validate_python(value)
            except ValidationError:
                continue
            return True
    return False


@EACH_PAGE
def test_settings_inside_sentences_are_taken(page: Path) -> None:
    elsewhere = text_of(ROOT / "docker-compose.yml")
    for code in inline(page):
        if re.match(r"[a-z_.]+: ", code) and code not in elsewhere:
            ((name, value),) = yaml.safe_load(code).items()
            assert takes(name, value), f"{page}: `{code}`"


@EACH_PAGE
def test_tables_of_settings_name_settings(page: Path) -> None:
    known = {name for model in models() for name in model.model_fields}
    for table in re.findall(r"^\| setting \|.*\n(?:\|.*\n)+", text_of(page), re.MULTILINE):
        for row in table.splitlines()[2:]:
            for name in re.findall(r"`([a-z_]+)`", row.split("|")[1]):
                assert name in known, f"{page}: {row}"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docker-compose.yml", ROOT / "Dockerfile"], ids=lambda page: page.name
)
def test_environment_variables_are_settings(page: Path) -> None:
    known = {
        f"{settings.model_config['env_prefix']}{name}".upper(): name
        for settings in SETTINGS.values()
        for name in settings.model_fields
    }
    for variable, value in re.findall(r"\b(BERT_[A-Z_]+)(?:=([\w./-]+))?", text_of(page)):
        if variable in (URL_VARIABLE, KEY_VARIABLE):  # those of the Python client
            continue
        assert variable in known, f"{page}: {variable}"
        assert not value or takes(known[variable], value), f"{page}: {variable}={value}"


def test_each_test_that_the_pages_name_is_there() -> None:
    named = {
        name
        for page in PAGES
        for code in inline(page)
        for name in re.findall(r"tests/[\w/]+\.py(?:::\w+)?", code)
    }
    assert len(named) > 40
    for name in named:
        file, _, test = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not test or re.search(rf"^(async )?def {test}\(", text_of(ROOT / file), re.MULTILINE), name
