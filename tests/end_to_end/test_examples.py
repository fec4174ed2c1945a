"""What /docs shows as answers is what the demo models answer."""

from collections.abc import Iterator

import pytest

from service.endpoints import TASK_ENDPOINTS, TaskEndpoint
from tests.end_to_end.workshop import DEMO, Workshop, has_adapter, why_missing
from tests.service.live import Live, serving

TOLERANCE = {"/qa": 0.3}
"""Its model is trained anew at times; of the others a score may move by 0.05."""
SHOWN = [endpoint for endpoint in TASK_ENDPOINTS if endpoint.model in DEMO]


@pytest.fixture(scope="module")
def live(workshop: Workshop) -> Iterator[Live]:
    # In the order of a folder, as `make serve` has them: /tokenize takes the first.
    bundles = [workshop.demo_bundle(name) for name in sorted(DEMO) if has_adapter(name)]
    with serving(bundles=bundles) as running:
        yield running


def differences(found: object, shown: object, tolerance: float, where: str = "") -> list[str]:
    """Return where an answer is not what is shown; of a vector the first numbers are shown."""
    if isinstance(shown, dict) and isinstance(found, dict) and set(shown) == set(found):
        return [d for key in shown for d in differences(found[key], shown[key], tolerance, f"{where}.{key}")]
    if isinstance(shown, list) and isinstance(found, list):
        is_vector = bool(shown) and isinstance(shown[0], float)
        if len(found) != len(shown) and not (is_vector and len(found) > len(shown)):
            return [f"{where}: {found} is not {shown}"]
        pairs = enumerate(zip(found, shown, strict=False))
        return [d for i, (a, b) in pairs for d in differences(a, b, tolerance, f"{where}[{i}]")]
    if isinstance(shown, float) and isinstance(found, float) and abs(found - shown) <= tolerance:
        return []
    return [] if found == shown else [f"{where}: {found!r} is not {shown!r}"]


@pytest.mark.parametrize("endpoint", SHOWN, ids=lambda endpoint: endpoint.path)
def test_the_answer_shown_is_the_demo_models(live: Live, endpoint: TaskEndpoint) -> None:
    if not has_adapter(endpoint.model):
        pytest.skip(why_missing(endpoint.model))
    answer = live.post(endpoint.path, endpoint.sent).json
    assert (answer["model"], answer["usage"]) == (endpoint.model, {"tokens": endpoint.tokens})
    tolerance = TOLERANCE.get(endpoint.path, 0.05)
    assert not differences(answer["results"], endpoint.results, tolerance)
