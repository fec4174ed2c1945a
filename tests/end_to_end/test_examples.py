"""What /docs and the documents show as answers is what the demo models answer."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.http.problems import Problem
from tests.support.documents import PAGES, ROOT, blocks, commands, name_of, text_of
from tests.support.endpoints import TASK_ENDPOINTS, TaskEndpoint
from tests.support.live import PATIENT, Live, serving
from tests.support.workshop import DEMO, Workshop, has_adapter, why_missing

TOLERANCE = {"/qa": 0.3}
"""Its model is trained anew at times; of the others a score may move by 0.05."""
PAGE_TOLERANCE = 0.03
"""Of a score in the text of a page: the models answer in fp32 or int8, and in int8 a little otherwise on another CPU."""
ENDPOINTS = {endpoint.path: endpoint for endpoint in TASK_ENDPOINTS}
API = ROOT / "docs/api.md"
TUTORIAL = ROOT / "docs/tutorial.md"
"""Its answers are those of the model that it makes: test_tutorial.py."""
SHOWN = [endpoint for endpoint in TASK_ENDPOINTS if endpoint.model in DEMO]


@pytest.fixture(scope="module")
def live(workshop: Workshop) -> Iterator[Live]:
    # In the order of a folder, as `make serve` has them: /tokenize takes the first.
    bundles = [workshop.demo_bundle(name) for name in sorted(DEMO) if has_adapter(name)]
    with serving(bundles=bundles, **PATIENT) as running:
        yield running


def differences(found: object, shown: object, tolerance: float, where: str = "") -> list[str]:
    """Return where an answer is not what is shown: numbers within `tolerance`, of a vector the first, all else exactly."""
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


@dataclass(frozen=True)
class Curl:
    """A request that a page shows as a line to paste."""

    page: Path
    path: str
    body: Any
    answer: str
    """The JSON that stands below it, or nothing."""

    def __str__(self) -> str:
        return f"{name_of(self.page)}: {self.path}"


def curls() -> Iterator[Curl]:
    """Give the requests of all pages whose body stands in the line."""
    for page in PAGES:
        shown = {
            b.end - len(b.text) - len("```json\n```"): b.text for b in blocks(page) if b.language == "json"
        }
        for command in commands(page):
            if command.program == "curl" and "-d" in command.words:
                address = next(word for word in command.words[1:] if ":8000/" in word)
                body = command.words[command.words.index("-d") + 1]
                path = urlsplit(address if "//" in address else f"//{address}").path
                # An answer stands one empty line below its request.
                yield Curl(page, path, json.loads(body), shown.get(command.end + 2, ""))


CURLS = list(curls())


@pytest.mark.parametrize("curl", CURLS, ids=str)
def test_a_request_on_a_page_fits_its_schema_and_so_does_the_answer(curl: Curl) -> None:
    ENDPOINTS[curl.path].request.model_validate_json(json.dumps(curl.body), strict=True)
    if curl.answer:
        ENDPOINTS[curl.path].response.model_validate_json(curl.answer, strict=True)


def test_the_readme_shows_an_answer() -> None:
    assert [curl.path for curl in CURLS if curl.answer and curl.page.name == "README.md"] == [
        "/ner",
        "/classify",
    ]


def is_for_the_demo(curl: Curl) -> bool:
    """Tell whether a demo model answers the request: none takes any labels that come with it."""
    labels = set(curl.body.get("labels", ()))
    return ENDPOINTS[curl.path].model in DEMO and curl.page != TUTORIAL and labels <= {"PER", "LOC", "ORG"}


@pytest.mark.parametrize("curl", [curl for curl in CURLS if is_for_the_demo(curl)], ids=str)
def test_a_request_on_a_page_is_answered_as_it_shows(live: Live, curl: Curl) -> None:
    if not has_adapter(ENDPOINTS[curl.path].model):
        pytest.skip(why_missing(ENDPOINTS[curl.path].model))
    reply = live.post(curl.path, curl.body)
    assert reply.status == 200, reply.body
    if curl.answer:
        assert not differences(reply.json, json.loads(curl.answer), PAGE_TOLERANCE)


def test_a_change_of_precision_passes_and_another_label_or_place_does_not() -> None:
    shown = {"label": "PER", "start": 3, "score": 0.91}
    assert not differences({"label": "PER", "start": 3, "score": 0.894}, shown, PAGE_TOLERANCE)
    for change in ({"label": "LOC"}, {"start": 4}, {"score": 0.87}):
        assert differences({**shown, **change}, shown, PAGE_TOLERANCE)


def test_the_problem_on_the_page_is_what_the_service_answers(live: Live) -> None:
    (shown,) = (json.loads(b.text) for b in blocks(API) if b.text.startswith('{"type"'))
    reply = live.post("/classify", {"text": ["A warm film.", "film " * 360]})
    Problem.model_validate_json(json.dumps(shown), strict=True, extra="forbid")
    assert (reply.status, reply.headers["content-type"]) == (422, "application/problem+json")
    assert len(reply.json["request_id"]) == len(shown["request_id"])
    assert reply.json == {**shown, "request_id": reply.json["request_id"]}


@pytest.mark.parametrize("endpoint", TASK_ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_the_fields_on_the_page_are_those_of_the_schemas(endpoint: TaskEndpoint) -> None:
    section = text_of(API).partition(f"\n## {endpoint.path}\n")[2]
    shape = re.match(r"(?: {4}.*\n)+", section)
    assert shape, f"{endpoint.path} has no shape below its heading"
    request, _, answer = shape[0].partition("→")
    fields = {name: not optional for name, optional in re.findall(r'"(\w+)"(\?)?', request)}
    assert fields == {name: field.is_required() for name, field in endpoint.request.model_fields.items()}
    # The page describes what every response has, and may have, above the endpoints.
    everywhere = {"model", "results", "usage", "tokens", "warnings", "field", "message"}
    schema = endpoint.response.model_json_schema()
    known = {name for part in (schema, *schema["$defs"].values()) for name in part["properties"]}
    assert set(re.findall(r'"(\w+)"', answer)) | everywhere == known
