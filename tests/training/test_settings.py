"""Settings from YAML, environment and command line."""

import math
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from bert.settings import INTERRUPTED, SettingsError, read_settings
from training.averaging.settings import AverageSettings
from training.command_line import command
from training.corpus.settings import PrepareSettings
from training.engine.optim import is_decayed
from training.evaluation.settings import EvaluateSettings
from training.evaluation.settings import from_command_line as evaluation_from_command_line
from training.pretraining.settings import PretrainSettings
from training.settings import FinetuneSettings

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
READERS: dict[str, Callable[[list[str]], object]] = {
    "bert-finetune": lambda arguments: read_settings(FinetuneSettings, arguments),
    "bert-evaluate": evaluation_from_command_line,
    "bert-pretrain": lambda arguments: read_settings(PretrainSettings, arguments),
}


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_each_shipped_yaml_opens_with_its_command_and_loads_for_it(file: Path) -> None:
    mark, command, *arguments = file.read_text(encoding="utf-8").splitlines()[0].split()
    assert (mark, arguments) == ("#", ["--config", f"configs/{file.name}"])
    assert READERS[command](["--config", str(file)])


def test_command_line_wins_over_environment_over_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERT_FINETUNE_EPOCHS", "7")
    monkeypatch.setenv("BERT_FINETUNE_BATCH_SIZE", "7")
    settings = read_settings(
        FinetuneSettings, ["--config", str(ROOT / "configs/demo-similarity.yaml"), "--epochs", "9"]
    )
    assert (settings.epochs, settings.batch_size) == (9, 7)


def test_the_environment_can_name_the_yaml_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERT_FINETUNE_CONFIG", str(ROOT / "configs/demo-similarity.yaml"))
    settings = read_settings(FinetuneSettings, [])
    assert (settings.task, settings.max_tokens) == ("similarity", 256)
    other = tmp_path / "other.yaml"
    other.write_text("task: qa\noutput_dir: x\n", encoding="utf-8")
    assert read_settings(FinetuneSettings, ["--config", str(other)]).task == "qa"


@pytest.mark.parametrize(
    ("task", "max_tokens", "stride"), [("qa", 384, 96), ("ner", 1024, 128), ("classification", 384, 0)]
)
def test_windows_overlap_where_nothing_is_said(task: str, max_tokens: int, stride: int) -> None:
    asked = ["--task", task, "--output-dir", "x", "--max-tokens", str(max_tokens)]
    assert read_settings(FinetuneSettings, asked).window_stride == stride
    assert read_settings(FinetuneSettings, [*asked, "--stride", "0"]).window_stride == 0


def test_a_file_of_settings_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"--config nowhere\.yaml: No such file"):
        read_settings(FinetuneSettings, ["--config", "nowhere.yaml"])
    monkeypatch.setenv("BERT_FINETUNE_CONFIG", "nowhere.yaml")
    with pytest.raises(SettingsError, match=r"BERT_FINETUNE_CONFIG nowhere\.yaml: No such file"):
        read_settings(FinetuneSettings, [])


@pytest.mark.parametrize(("flag", "resume"), [("--resume", True), ("--no-resume", False)])
def test_resume_is_a_flag(flag: str, resume: bool) -> None:
    arguments = ["--task", "qa", "--output-dir", "x"]
    assert read_settings(FinetuneSettings, [*arguments, flag]).resume is resume


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "greater than 0"),
        ({"stride": 126}, r"stride \(126\) must be below"),
        ({"accumulation_steps": 64}, r"accumulation_steps \(64\) cannot pass batch_size"),
        ({"sharding": "full", "lora": {}}, r"sharding \('full'\) is not for lora"),
        ({"epoch": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FinetuneSettings(task="ner", output_dir=Path("x"), **changes)


@pytest.mark.parametrize(
    ("dev", "test", "name"),
    [
        ([{"path": "a/dev.tsv"}, {"path": "b/dev.csv"}], [], "dev"),
        ([{"path": "a/dev.tsv"}], [{"path": "b/dev.tsv"}], "dev"),
        ([{"path": "glue"}], [{"path": "glue", "hub_split": "test"}], "glue"),
        ([], [{"path": "a.tsv", "name": "same"}, {"path": "b.tsv", "name": "same"}], "same"),
    ],
)
def test_two_files_whose_scores_would_have_one_name_are_refused(
    dev: list[Any], test: list[Any], name: str
) -> None:
    with pytest.raises(
        ValidationError, match=f"would both be called '{name}': give one of the files another"
    ):
        FinetuneSettings(task="qa", output_dir=Path("x"), dev=dev, test=test)


def test_files_that_are_named_or_only_trained_on_may_share_a_file_name() -> None:
    train: list[Any] = [{"path": "a/dev.tsv"}, {"path": "b/dev.tsv"}]
    dev: list[Any] = [{"path": "a/dev.tsv"}, {"path": "b/dev.tsv", "name": "other"}]
    settings = FinetuneSettings(task="qa", output_dir=Path("x"), train=train, dev=dev)
    assert [file.source_name for file in settings.dev] == ["dev", "other"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("task: [", "is not YAML"),
        ("- a", "holds a list"),
        ("a: \x00", "is not YAML"),
        ("text", "holds a str"),
        ("config: other.yaml", "has `config`: one settings file cannot name another"),
    ],
)
def test_a_broken_yaml_is_a_sentence(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        read_settings(FinetuneSettings, ["--config", str(file)])


def types_in(annotation: Any) -> Iterator[Any]:
    """Every type that an annotation names, at any depth: float of list[float | None]."""
    yield annotation
    for inner in get_args(annotation):
        yield from types_in(inner)


def numbers_of(settings: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Each setting that takes a number with a fraction, those of groups inside too."""
    for name, field in settings.model_fields.items():
        for kind in types_in(field.annotation):
            if kind is float:
                yield settings, name
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from numbers_of(kind)


NUMBERS = list(
    dict.fromkeys(
        number
        for settings in (FinetuneSettings, PretrainSettings, PrepareSettings, EvaluateSettings)
        for number in numbers_of(settings)
    )
)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf", "nan"])
@pytest.mark.parametrize(("settings", "name"), NUMBERS, ids=lambda item: getattr(item, "__name__", item))
def test_a_number_that_is_not_finite_is_refused(settings: type[BaseModel], name: str, value: object) -> None:
    with pytest.raises(ValidationError) as error:
        # In a list or under a name where the setting holds those.
        annotation = settings.model_fields[name].annotation
        is_list = get_origin(annotation) is list
        is_named = any(get_origin(kind) is dict for kind in types_in(annotation))
        settings.model_validate({name: [value] if is_list else {"a": value} if is_named else value})
    places = {(name,), (name, 0)}
    found = [e["type"] for e in error.value.errors() if e["loc"] in places or e["loc"][-1] == "a"]
    assert found == ["finite_number"]


def test_numbers_that_are_not_finite_are_said_with_name_and_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "endless.yaml"
    file.write_text("task: ner\noutput_dir: x\nlora: {alpha: .nan}\ntrain: [{path: x, repeat: .inf}]\n")
    monkeypatch.setenv("BERT_FINETUNE_WEIGHT_DECAY", "nan")
    with pytest.raises(SystemExit) as end:
        command(lambda: read_settings(FinetuneSettings, ["--config", str(file), "--epochs", "inf"]))()
    told = capsys.readouterr().err
    assert end.value.code == 2
    for line in (
        "train.0.repeat: input should be a finite number (given: inf)",
        "lora.alpha: input should be a finite number (given: nan)",
        "weight_decay: input should be a finite number (given: 'nan')",
        "epochs: input should be a finite number (given: 'inf')",
    ):
        assert f"bert-finetune: {line}\n" in told


def test_a_wrong_name_gets_the_one_that_was_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: ner\noutput_dir: x\nepoch: 3\nlora: {rang: 3}\ntrain: [{path: a, colums: {}}]\n")
    with pytest.raises(SystemExit) as end:
        command(lambda: read_settings(FinetuneSettings, ["--config", str(file)]))()
    assert end.value.code == 2
    told = capsys.readouterr().err
    for line in (
        "bert-finetune: train.0.colums: there is no such setting; did you mean columns?",
        "bert-finetune: lora.rang: there is no such setting; did you mean rank?",
        "bert-finetune: epoch: there is no such setting; did you mean epochs?",
    ):
        assert f"{line}\n" in told
    with pytest.raises(SystemExit) as end:
        command(lambda: read_settings(PretrainSettings, ["--learning-rat=3", "--zzz"]))()
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "bert-pretrain: unrecognized arguments: --learning-rat=3 --zzz; did you mean --learning-rate?\n"
    )


def test_the_form_of_a_value_on_the_command_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    form = "is not JSON; lists and groups of settings are JSON on the command line and in the environment, YAML in --config"
    given = "[{max_tokens: 64, share: 0.5}]"
    with pytest.raises(SettingsError, match=rf"^phases: '{re.escape(given)}' {form}$"):
        read_settings(PretrainSettings, ["--phases", given])
    with pytest.raises(SettingsError, match=r"unrecognized arguments: false; a switch takes no value"):
        read_settings(PretrainSettings, ["--packed", "false"])
    monkeypatch.setenv("BERT_PRETRAIN_PHASES", given)
    with pytest.raises(SettingsError, match=form):
        read_settings(PretrainSettings, [])


def test_a_rule_over_several_settings_is_said_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(
            lambda: read_settings(FinetuneSettings, ["--task", "ner", "--output-dir", "x", "--stride", "126"])
        )()
    assert capsys.readouterr().err.startswith("bert-finetune: stride (126) must be below")


def test_ctrl_c_ends_with_a_word_and_the_code_that_a_shell_expects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        command(interrupted)()
    assert ended.value.code == INTERRUPTED == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


def test_biases_and_norms_do_not_decay_however_they_are_spelt() -> None:
    kept = ["bert.embeddings.LayerNorm.weight", "boundary.layer_norm1.weight", "head.norm.weight"]
    kept += ["cls.bias"]
    assert not any(map(is_decayed, kept))
    assert is_decayed("bert.encoder.layer.0.output.dense.weight")


def test_repeat_is_for_training_files() -> None:
    with pytest.raises(
        SettingsError, match=r"repeat is for training files, and each example of b\.csv is scored once"
    ):
        READERS["bert-finetune"](
            [
                "--task=classification",
                "--output-dir=x",
                "--train=a.csv",
                '--dev={"path": "b.csv", "repeat": 2}',
            ]
        )


def test_what_only_training_reads_is_refused_by_the_average() -> None:
    with pytest.raises(
        SettingsError, match=r"repeat is for training files, and each example of b\.csv is scored once"
    ):
        read_settings(
            AverageSettings, ["--checkpoints=a", "--output-dir=x", '--dev={"path": "b.csv", "repeat": 2}']
        )
