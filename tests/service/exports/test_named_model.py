"""What `--model` names, and the name that requests use."""

from pathlib import Path

import pytest

from bert.errors import BundleError, ConfigError
from service.exports.named_model import NamedModel, named_models


@pytest.mark.parametrize(
    ("text", "name", "checkpoint", "slug"),
    [
        ("org/name", "name", "org/name", "org--name"),
        ("bert-base-uncased", "bert-base-uncased", "bert-base-uncased", "bert-base-uncased"),
        ("org/name@v1", "name", "org/name@v1", "org--name"),
        ("mood=org/name@v1", "mood", "org/name@v1", "org--name"),
    ],
)
def test_requests_use_the_last_part_of_a_name_or_another(
    text: str, name: str, checkpoint: str, slug: str
) -> None:
    model = NamedModel.parse(text)
    assert (model.name, model.checkpoint, model.slug) == (name, checkpoint, slug)
    assert model.hub is not None


def test_a_folder_is_called_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/mood").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for text, name in (("runs/mood", "mood"), ("./runs/mood/", "mood"), ("other=runs/mood", "other")):
        model = NamedModel.parse(text)
        assert model.name == name and model.hub is None
        assert (
            model.slug.startswith("mood--")
            and model.slug == NamedModel.parse(str(tmp_path / "runs/mood")).slug
        )


def test_a_change_of_a_file_is_a_change_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = NamedModel.parse(str(tmp_path))
    before = model.folder_state()
    assert model.folder_state() == before
    (tmp_path / "config.json").write_text("{ }")
    assert model.folder_state() != before
    with pytest.raises(
        BundleError, match=r"nowhere is not a folder; give a checkpoint's, or a model of the hub"
    ):
        NamedModel.parse(str(tmp_path / "nowhere")).folder_state()


def test_a_name_is_no_path() -> None:
    assert NamedModel.parse("..=org/name").hub is None


def test_the_word_of_a_route_is_no_name() -> None:
    with pytest.raises(ConfigError, match="cannot be called 'ping', because /tei/ping is a route"):
        named_models(["ping=org/name"])
    with pytest.raises(ConfigError, match="model org/embed: a model cannot be called 'embed'"):
        named_models(["org/embed"])
    assert [model.name for model in named_models(["other=org/embed"])] == ["other"]


def test_two_models_of_one_name_need_another() -> None:
    with pytest.raises(
        ConfigError, match=r"a/ner and b/ner would both be called 'ner': .*--model ner-2=b/ner"
    ):
        named_models(["a/ner", "b/ner"])
    assert [model.name for model in named_models(["a/ner", "other=b/ner", "a/ner"])] == ["ner", "other"]
