"""Learning rate and epochs where the settings leave them open."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bert.config import BertConfig
from bert.families import FAMILIES
from training.engine.state import planned
from training.finetune import finetune
from training.finetuning.recipe import default_rate, make_recipe, rate_of_size
from training.settings import FinetuneSettings

Make = Callable[..., FinetuneSettings]
OPEN: dict[str, Any] = {"learning_rate": None, "epochs": None}


def settings(**changes: Any) -> FinetuneSettings:
    return FinetuneSettings(task="ner", output_dir=Path("x"), **changes)


def shape(layers: int, width: int) -> BertConfig:
    return BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=4)


@pytest.mark.parametrize(
    ("layers", "width", "rate"),
    [(2, 128, 3e-4), (4, 256, 3e-4), (6, 384, 2e-4), (12, 384, 1e-4), (12, 768, 5e-5), (24, 1024, 2e-5)],
)
def test_the_rate_falls_with_the_size_of_the_base(layers: int, width: int, rate: float) -> None:
    recipe = make_recipe(settings(), shape(layers, width), 1260, 40)
    assert recipe.learning_rate == rate
    assert recipe.reasons["learning_rate"] == f"default for bert of {layers} layers, {width} wide"


@pytest.mark.parametrize(
    ("family", "layers", "width", "rate"),
    [
        ("roberta", 12, 768, 2e-5), ("roberta", 24, 1024, 1e-5), ("xlm-roberta", 12, 768, 2e-5),
        ("camembert", 12, 768, 2e-5), ("distilbert", 6, 768, 5e-5), ("electra", 12, 256, 1e-4),
        ("electra", 12, 768, 1e-4), ("electra", 24, 1024, 5e-5), ("albert", 12, 768, 2e-5),
        ("albert", 12, 4096, 2e-5), ("mpnet", 12, 768, 2e-5), ("modernbert", 22, 768, 8e-5),
        ("modernbert", 28, 1024, 5e-5), ("deberta-v2", 6, 768, 4.5e-5), ("deberta-v2", 12, 768, 2e-5),
        ("deberta-v2", 24, 1024, 6e-6), ("deberta-v2", 48, 1536, 3e-6), ("deberta", 24, 1024, 1e-5),
        ("ernie", 12, 768, 5e-5),
    ],
)  # fmt: skip
def test_the_rate_is_that_of_the_family(family: str, layers: int, width: int, rate: float) -> None:
    # The size alone decides what is open here; a config of the family would need more than that.
    config = SimpleNamespace(layer_order=range(layers), hidden_size=width, family=FAMILIES[family])
    found, reason = default_rate(settings(), cast(BertConfig, config))
    assert (found, reason) == (rate, f"default for {family} of {layers} layers, {width} wide")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rate_of_every_family_falls_with_the_size(family: str) -> None:
    published = FAMILIES[family].learning_rates
    for layers, width, rate in published:
        assert rate_of_size(published, layers, width) == pytest.approx(rate)
    rates = [rate_of_size(published, layers, 768) for layers in (1, 2, 4, 6, 8, 12, 24, 48, 96)]
    assert rates == sorted(rates, reverse=True) and rates[0] <= 3e-4


def test_similarity_which_has_no_fresh_head_has_a_lower_rate() -> None:
    alike = FinetuneSettings(task="similarity", output_dir=Path("x"))
    assert make_recipe(alike, shape(12, 768), 1260, 40).learning_rate == 2e-5
    assert make_recipe(alike, shape(6, 384), 1260, 40).learning_rate == 8e-5
    assert make_recipe(alike, shape(2, 128), 1260, 40).learning_rate == 1e-4


def test_an_adapter_has_a_rate_of_its_own() -> None:
    recipe = make_recipe(settings(lora={}), shape(6, 384), 1260, 40)
    assert (recipe.learning_rate, recipe.reasons["learning_rate"]) == (5e-4, "default for an adapter")


@pytest.mark.parametrize(
    ("steps_an_epoch", "epochs"), [(1, 20), (12, 17), (40, 5), (67, 3), (100, 3), (20_000, 3)]
)
def test_little_data_is_passed_over_more_often(steps_an_epoch: int, epochs: int) -> None:
    assert make_recipe(settings(), shape(6, 384), 1, steps_an_epoch).epochs == epochs


def test_the_choice_is_said_with_its_reasons() -> None:
    said = make_recipe(settings(), shape(6, 384), 1260, 40).sentence(200, 20)
    assert said == (
        "learning_rate 2e-4 (default for bert of 6 layers, 384 wide), "
        "epochs 5 (default for 1,260 examples in batches of 32): 200 steps, 20 of them warm-up"
    )


def test_what_is_given_wins_over_everything() -> None:
    given, saved = settings(learning_rate=1e-5, epochs=1.5), {"learning_rate": 1.0, "epochs": 9.0}
    recipe = make_recipe(given, shape(6, 384), 1260, 40, saved)
    assert (recipe.learning_rate, recipe.epochs, recipe.reasons) == (1e-5, 1.5, {})


def test_a_resumed_run_keeps_what_it_began_with() -> None:
    recipe = make_recipe(settings(), shape(6, 384), 1260, 40, {"learning_rate": 1e-5, "epochs": 7.0})
    assert (recipe.learning_rate, recipe.epochs) == (1e-5, 7.0)
    assert set(recipe.reasons.values()) == {"as the run began"}


def test_a_run_by_steps_has_the_epochs_that_they_need() -> None:
    assert make_recipe(settings(max_steps=2600), shape(6, 384), 1260, 40, {"epochs": 3.0}).epochs == 65


def test_a_run_says_and_records_what_was_chosen_and_keeps_it(
    settings_for: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first = settings_for("classification", learning_rate=2e-3, epochs=2)
    finetune(first)
    with caplog.at_level(logging.INFO):
        finetune(settings_for("classification", **OPEN))  # nothing is left to do, and nothing is refused
    said = "learning_rate 2e-3 (as the run began), epochs 2 (as the run began): 16 steps, 2 of them warm-up"
    assert said in caplog.text
    report = json.loads((first.output_dir / "report" / "report.json").read_text(encoding="utf-8"))
    assert (report["recipe"], report["training"]["steps"]) == (said, 16)
    assert (report["settings"]["learning_rate"], report["settings"]["epochs"]) == (2e-3, 2)
    assert said in (first.output_dir / "report" / "report.md").read_text(encoding="utf-8")


def test_what_was_chosen_is_read_from_the_first_save_that_can_be_read(tmp_path: Path) -> None:
    new, old, broken = (tmp_path / name for name in ("new", "old", "broken"))
    for folder in (new, old, broken):
        folder.mkdir()
    (new / "state.json").write_text('{"progress": {"epochs": 5}, "settings": {"learning_rate": 1e-4}}')
    (old / "state.json").write_text('{"progress": {"epochs": 3}, "settings": {"learning_rate": 5e-5}}')
    (broken / "state.json").write_text("{")
    assert planned([tmp_path / "gone", broken, new, old]) == {"learning_rate": 1e-4, "epochs": 5}
    assert planned([broken]) == {}
