"""The shipped recipes."""

from pathlib import Path

import pytest
import yaml

from training.command_line import read_settings
from training.pretraining.settings import PretrainSettings

CONFIGS = Path(__file__).parents[3] / "configs"
RECIPES = sorted(CONFIGS.glob("pretrain-*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_is_valid_and_opens_with_its_command(file: Path) -> None:
    settings = read_settings(PretrainSettings, "bert-pretrain", ["--config", str(file)])
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# bert-pretrain --config configs/{file.name}"
    assert settings.output_dir == Path("runs") / file.stem


def test_every_objective_and_masking_has_a_recipe() -> None:
    recipes = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RECIPES]
    fields = PretrainSettings.model_fields
    assert {recipe["objective"] for recipe in recipes} == set(fields["objective"].annotation.__args__)  # type: ignore[union-attr]
    kinds = {"tokens", "whole_words", "spans", "similar_words", "phrases"}
    assert {recipe.get("masking", {}).get("kind", "tokens") for recipe in recipes} == kinds
