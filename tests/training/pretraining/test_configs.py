"""The shipped recipes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bert.settings import SettingsError, read_settings
from training.pretraining.masking import KINDS
from training.pretraining.recipes import RECIPES, Recipe
from training.pretraining.settings import PretrainSettings

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted(CONFIGS.glob("pretrain-*.yaml"))


def everything_else(settings: PretrainSettings) -> dict[str, Any]:
    """Return all settings but the names of file and recipe."""
    return settings.model_dump(exclude={"config", "recipe"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_is_valid_and_opens_with_its_command(file: Path) -> None:
    settings = read_settings(PretrainSettings, ["--config", str(file)])
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# bert-pretrain --config configs/{file.name}"
    assert settings.output_dir == Path("runs") / file.stem


SHIPPED: dict[Recipe, str] = {
    "bert": "bert", "no_nsp": "no-nsp", "left_to_right": "left-to-right", "roberta": "roberta", "whole_word": "whole-word",
    "spanbert": "spanbert", "albert": "albert", "electra": "electra", "macbert": "macbert", "ernie": "ernie",
    "distilbert": "distil", "deberta_v3": "deberta-v3", "modernbert": "modernbert",
}  # fmt: skip
"""Recipe → its file."""


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_recipe_by_name_is_that_of_its_file(recipe: Recipe, tmp_path: Path) -> None:
    file = CONFIGS / f"pretrain-{SHIPPED[recipe]}.yaml"
    explicit = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert RECIPES[recipe].keys() <= explicit.keys()  # a file says all of it, defaults too
    left = {key: value for key, value in explicit.items() if key not in RECIPES[recipe]}
    if "model" in RECIPES[recipe]:
        left["model"] = {k: v for k, v in explicit["model"].items() if k not in RECIPES[recipe]["model"]}
    if recipe == "distilbert":
        left["distillation"] = {"teacher": explicit["distillation"]["teacher"]}
    if recipe == "ernie":
        left["masking"] = {"phrases": explicit["masking"]["phrases"]}
    named = tmp_path / "named.yaml"
    named.write_text(yaml.safe_dump({**left, "recipe": recipe}), encoding="utf-8")
    by_name, by_file = (
        everything_else(read_settings(PretrainSettings, ["--config", str(f)])) for f in (named, file)
    )
    assert by_name == by_file


def test_chinese_whole_words_are_those_of_the_recipe_by_lamb() -> None:
    text = (CONFIGS / "pretrain-whole-word-zh.yaml").read_text(encoding="utf-8")
    explicit, recipe = yaml.safe_load(text), RECIPES["whole_word"]
    assert {name: explicit[name] for name in recipe} == recipe
    assert (explicit["optimizer"], explicit["base"]) == ("lamb", "checkpoints/bert-base-chinese")


def test_what_is_given_beside_a_recipe_wins() -> None:
    arguments = ["--corpus", "c", "--output-dir", "o", "--max-steps", "1", "--recipe", "bert"]
    more = ["--masking.rate", "0.3", "--bias-correction"]
    settings = read_settings(PretrainSettings, [*arguments, *more])
    assert (settings.objective, settings.examples, settings.bias_correction) == ("mlm+nsp", "pairs", True)
    assert (settings.masking.rate, settings.masking.static_dupes) == (0.3, 10)
    other = read_settings(PretrainSettings, [*arguments[:-1], "albert", "--masking.kind", "tokens"])
    assert (other.masking.kind, other.masking.span_shares) == ("tokens", [])
    ablation = [*arguments, "--objective", "left_to_right", "--examples", "single"]
    assert read_settings(PretrainSettings, ablation).masking.static_dupes == 0
    modern = [*arguments[:-1], "modernbert", "--schedule", "linear"]
    assert read_settings(PretrainSettings, modern).decay_shape == "linear"
    deberta = [*arguments[:-1], "deberta_v3", "--objective", "mlm"]
    assert read_settings(PretrainSettings, deberta).replaced_token.generator_depth == 1
    with pytest.raises(SettingsError, match="recipe"):
        read_settings(PretrainSettings, [*arguments[:-1], "bart"])


def test_a_run_that_names_nothing_of_the_kind_is_modernberts(tmp_path: Path) -> None:
    arguments = [
        "--corpus",
        "c",
        "--output-dir",
        str(tmp_path),
        "--max-steps",
        "1",
        "--model.hidden-size",
        "256",
    ]
    found = read_settings(PretrainSettings, [*arguments, "--batch-size", "8"])
    assert everything_else(found) == everything_else(
        read_settings(PretrainSettings, [*arguments, "--batch-size", "8", "--recipe", "modernbert"])
    )
    assert (found.recipe, found.model.model_type, found.masking.rate) == ("modernbert", "modernbert", 0.3)
    assert (found.max_tokens, found.optimizer) == (1024, "stable_adamw")


@pytest.mark.parametrize(
    "choice",
    [["--objective", "mlm+nsp"], ["--examples", "pairs"], ["--masking.rate", "0.15"], ["--base", "b"]],
)
def test_a_run_that_does_has_the_defaults_of_before(choice: list[str]) -> None:
    arguments = ["--corpus", "c", "--output-dir", "o", "--max-steps", "1", *choice]
    found = read_settings(PretrainSettings, arguments)
    assert (found.recipe, found.objective, found.examples) == (None, "mlm+nsp", "pairs")
    assert (found.model.model_type, found.optimizer, found.max_tokens) == ("bert", "adamw", 128)


def test_every_objective_and_masking_has_a_recipe() -> None:
    recipes = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in FILES]
    fields = PretrainSettings.model_fields
    assert {recipe["objective"] for recipe in recipes} == set(fields["objective"].annotation.__args__)  # type: ignore[union-attr]
    kinds = set(KINDS)
    assert {recipe.get("masking", {}).get("kind", "tokens") for recipe in recipes} == kinds
