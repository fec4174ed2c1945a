"""The speed of graphs, measured side by side."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bert.errors import ExportError
from model_export.verify.auto_precision import (
    ROUNDS,
    SMALLEST_SPEEDUP,
    best_milliseconds,
    check_speed,
    speedup,
    time_graphs,
)
from model_export.verify.precision import EXPORTERS
from tests.support.checkpoints import SPECS, checkpoint_and_texts, write_checkpoint


def test_graphs_take_turns_and_the_best_time_counts() -> None:
    now, calls = [0.0], []
    costs = {"a": iter([9, 5, 2, *[4] * 99]), "b": iter([9, 3, 3, *[3] * 99])}

    def takes(name: str) -> Callable[[], None]:
        def work() -> None:
            calls.append(name)
            now[0] += next(costs[name]) / 1000

        return work

    assert best_milliseconds([takes("a"), takes("b")], lambda: now[0]) == pytest.approx([2, 3])
    assert calls[:4] == ["a", "b", "a", "b"] and len(calls) == 2 * ROUNDS[1]


def test_a_slow_model_is_run_a_few_times_only() -> None:
    now, calls = [0.0], [0]

    def work() -> None:
        calls[0] += 1
        now[0] += 5

    assert best_milliseconds([work], lambda: now[0]) == [5000]
    assert calls[0] == ROUNDS[0]


def test_speed_is_the_mean_ratio_of_the_batches() -> None:
    assert speedup({"a": 4.0, "b": 10.0}, {"a": 1.0, "b": 10.0}) == pytest.approx(2)
    fast = {"fp32": {"1 x 32": 4.0, "8 x 64": 60.0}, "int8": {"1 x 32": 2.0, "8 x 64": 30.0}}
    assert check_speed(fast) == pytest.approx(2)
    barely: Mapping[str, Any] = {"fp32": {"a": SMALLEST_SPEEDUP - 0.01}, "int8": {"a": 1.0}}
    with pytest.raises(ExportError, match=r"1\.09 times as fast"):
        check_speed(dict(barely))


@pytest.mark.parametrize(
    "name", ["classification", "ner", "qa", "similarity", "fill_mask", "multiple_choice"]
)
def test_each_task_is_timed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_export.verify.auto_precision.ROUNDS", (1, 1))
    write_checkpoint(tmp_path, SPECS[name])
    checkpoint, texts = checkpoint_and_texts(tmp_path)
    graphs = {precision: EXPORTERS[precision](checkpoint, texts) for precision in ("fp32", "int8")}
    times = time_graphs(graphs, texts, name)
    assert list(times) == ["fp32", "int8"]
    assert all(list(found) == ["1 x 32", "8 x 64"] and min(found.values()) > 0 for found in times.values())
    json.dumps(times)
