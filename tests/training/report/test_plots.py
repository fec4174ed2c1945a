"""The pictures: what their axes hold, and that something is drawn."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.report.plots import (
    MAX_POINTS,
    Line,
    Panel,
    draw_confusion,
    draw_panels,
    limits,
    rolling_median,
    thin,
)


@pytest.mark.parametrize(
    ("values", "low", "high"), [((0.71, 0.73), 0, 1), ((-0.2, 0.1), -0.2, 1), ((0.2, 3.0), 0, 3)]
)
def test_a_flat_score_looks_flat(values: tuple[float, float], low: float, high: float) -> None:
    bottom, top = limits(Panel("score", [Line("dev accuracy", [1, 2], values)], (0.0, 1.0)))
    assert bottom == pytest.approx(low - 0.02 * (high - low))
    assert top == pytest.approx(high + 0.02 * (high - low))


def test_a_few_wild_steps_do_not_press_the_rest_flat() -> None:
    values = np.full(1000, 2.0)
    values[:3] = 500.0
    _, top = limits(Panel("loss", [Line("each step", range(1000), values.tolist(), every_step=True)], (0.0,)))
    assert top < 3


def test_a_long_run_is_drawn_from_means() -> None:
    steps, norms = np.arange(1, 10_002), 1 + 5 / np.arange(1, 10_002)
    drawn_steps, drawn = thin(Line("norm", steps.tolist(), norms.tolist()))
    assert len(drawn) <= MAX_POINTS
    assert (drawn_steps[0], drawn[0]) == pytest.approx((2.5, norms[:4].mean()))
    assert (drawn_steps[-1], drawn[-1]) == (10_001, norms[-1])


def test_the_smooth_course_passes_over_spikes_and_begins_at_the_beginning() -> None:
    values = np.linspace(10, 2, 500)
    spiked = values.copy()
    spiked[250:252] = 50
    np.testing.assert_allclose(rolling_median(values)[:490], values[:490])
    np.testing.assert_allclose(rolling_median(spiked), rolling_median(values), atol=0.05)


def test_pictures_are_drawn_for_short_runs_many_classes_and_other_scripts(tmp_path: Path) -> None:
    draw_panels(
        tmp_path / "short.png", [Panel("loss", [Line("each step", [1], [2.0], every_step=True)], (0.0,))]
    )
    levels = {"inside": 1.5, "outside": 9.0}
    long = Line("norm", range(50), [1.0 + n for n in range(50)], every_step=True)
    panels = [
        Panel("norm", [long], logarithmic=True),
        Panel("score", [Line("中文", [1], [1.0])], (1, 2), levels, 3),
    ]
    draw_panels(tmp_path / "several.png", panels)
    draw_confusion(tmp_path / "many.png", np.eye(40, dtype=np.int64), [f"class {n}" for n in range(40)])
    draw_confusion(tmp_path / "chinese.png", np.eye(2, dtype=np.int64), ["好评", "差评"])
    for name in ("short", "several", "many", "chinese"):
        with Image.open(tmp_path / f"{name}.png") as image:
            assert np.asarray(image.convert("L")).std() > 5  # something is on it
