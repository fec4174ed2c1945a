"""The cache of measurements beside a bundle, valid for the same machine and model only."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bert.packing import CostModel
from service.engine import measure as measuring
from service.engine import tuning_cache
from service.engine.bundle_folders import find_bundles
from service.engine.bundle_loader import BundleLoader
from service.engine.cost_curve import CostPoint, Measurement
from service.engine.measure import DISTURBED, is_steady, measure
from service.engine.models import OpenedModel
from service.engine.slot_layout import SlotLayout
from service.engine.tuning_cache import MAX_MACHINES, cache_file, machine_of

ONE = SlotLayout(1, 1)
CURVE = (CostPoint(16, 1e-3, 1e-3), CostPoint(32, 2e-3, 2e-3), CostPoint(64, 3e-3, 3.5e-3))


@pytest.fixture
def model(bundles: Path, tmp_path: Path) -> OpenedModel:
    shutil.copytree(bundles / "mood", tmp_path / "mood")
    folder = tmp_path / "mood"
    return BundleLoader(find_bundles([folder]), threads=1).open(folder)


def count_measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measure nothing, and note for which model it was asked."""
    asked: list[str] = []

    def curve(
        model: OpenedModel, layout: SlotLayout, seconds: float, batch_tokens: int | None = None
    ) -> list[CostPoint]:
        asked.append(model.name)
        return list(CURVE)

    monkeypatch.setattr(measuring, "measure_curve", curve)
    return asked


def test_the_second_start_measures_nothing(model: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_measurements(monkeypatch)
    first = measure([model], ONE, use_cache=True)
    assert measure([model], ONE, use_cache=True) == first == {model.id: Measurement(CURVE)}
    assert asked == ["mood"]
    assert cache_file(model.bundle).name == "mood.tuning.json"
    assert json.loads(cache_file(model.bundle).read_text())[0]["machine"]["cores"] >= 1


@pytest.mark.parametrize("changed", ["cpu", "cores", "slots", "onnxruntime", "model_sha256"])
def test_another_machine_or_model_has_an_entry_of_its_own(model: OpenedModel, changed: str) -> None:
    machine = machine_of(model, ONE)
    assert tuning_cache.write(model.bundle, machine, Measurement(CURVE, 64))
    other = {**machine, changed: "other"}
    assert tuning_cache.read(model.bundle, other) is None
    assert tuning_cache.write(model.bundle, other, Measurement(CURVE[:2]))
    assert tuning_cache.read(model.bundle, machine) == Measurement(CURVE, 64)
    assert tuning_cache.read(model.bundle, other) == Measurement(CURVE[:2])


def test_a_new_entry_replaces_the_old_one_and_the_oldest_machines_are_dropped(model: OpenedModel) -> None:
    for number in range(MAX_MACHINES + 5):
        assert tuning_cache.write(model.bundle, {"cpu": number}, Measurement(CURVE))
        assert tuning_cache.write(model.bundle, {"cpu": number}, Measurement(CURVE[:1]))
    assert tuning_cache.read(model.bundle, {"cpu": MAX_MACHINES + 4}) == Measurement(CURVE[:1])
    assert len(json.loads(cache_file(model.bundle).read_text())) == MAX_MACHINES


@pytest.mark.parametrize("text", ["", "{", "[]", "[3]", '{"a": 1}', "[[]]", "\ud800", "[" * 100_000])
def test_a_file_that_cannot_be_read_is_measured_again(
    model: OpenedModel, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    cache_file(model.bundle).write_bytes(text.encode("utf-8", "surrogatepass"))
    asked = count_measurements(monkeypatch)
    assert measure([model], ONE, use_cache=True) == {model.id: Measurement(CURVE)}
    assert measure([model], ONE, use_cache=True) and asked == ["mood"]


def test_a_fitted_cost_model_is_kept(model: OpenedModel) -> None:
    machine = machine_of(model, ONE)
    measured = Measurement(CURVE, None, CostModel(551.5, 13.5))
    assert tuning_cache.write(model.bundle, machine, measured)
    assert tuning_cache.read(model.bundle, machine) == measured


@pytest.mark.parametrize(
    "cost", [..., 3, {}, {"attention_width": "a", "run_tokens": 1}, [], {"run_tokens": 1}]
)
def test_an_entry_without_a_plausible_cost_model_is_measured_again(model: OpenedModel, cost: object) -> None:
    machine = machine_of(model, ONE)
    assert tuning_cache.write(model.bundle, machine, Measurement(CURVE))
    content = json.loads(cache_file(model.bundle).read_text())
    del content[0]["cost"]
    content[0] |= {} if cost is ... else {"cost": cost}
    cache_file(model.bundle).write_text(json.dumps(content))
    assert tuning_cache.read(model.bundle, machine) is None


@pytest.mark.parametrize(
    "curve",
    [None, [], [{}], [{"tokens": "a"}], [[1, 2]], 3, [{"tokens": 16, "seconds": 5e-324, "wall_s": 0.0}]],
)
def test_a_malformed_entry_is_measured_again(
    model: OpenedModel, monkeypatch: pytest.MonkeyPatch, curve: object
) -> None:
    machine = machine_of(model, ONE)
    content = [{"machine": machine, "curve": curve, "wide_from": None, "cost": None}]
    cache_file(model.bundle).write_text(json.dumps(content), encoding="utf-8")
    asked = count_measurements(monkeypatch)
    assert measure([model], ONE, use_cache=True) == {model.id: Measurement(CURVE)} and asked == ["mood"]


def test_without_a_writable_cache_each_start_measures(
    model: OpenedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_measurements(monkeypatch)
    monkeypatch.setattr(tuning_cache, "cache_file", lambda bundle: bundle.folder / "nowhere" / "x.json")
    for _ in range(2):
        assert measure([model], ONE, use_cache=True) == {model.id: Measurement(CURVE)}
    assert asked == ["mood", "mood"]


def test_a_given_budget_neither_reads_nor_writes_the_cache(
    model: OpenedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_measurements(monkeypatch)
    measure([model], ONE, 64, use_cache=True)
    measure([model], ONE)
    assert asked == ["mood", "mood"] and not cache_file(model.bundle).exists()


def test_a_disturbed_measurement_is_not_cached(model: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tuple(replace(point, wall_s=1.1 * DISTURBED * point.seconds) for point in CURVE)
    assert is_steady(Measurement(CURVE)) and not is_steady(Measurement(slow))
    monkeypatch.setattr(measuring, "measure_curve", lambda *_: list(slow))
    measure([model], ONE, use_cache=True)
    assert not cache_file(model.bundle).exists()


@pytest.mark.parametrize("field", ["tokens", "seconds", "wall_s"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_implausible_numbers_are_measured_again(model: OpenedModel, field: str, value: float) -> None:
    machine = machine_of(model, ONE)
    assert tuning_cache.write(model.bundle, machine, Measurement(CURVE, 64))
    file = cache_file(model.bundle)
    content = json.loads(file.read_text())
    content[0]["curve"][-1][field] = value
    file.write_text(json.dumps(content))
    assert tuning_cache.read(model.bundle, machine) is None
