"""The OpenAPI document and /docs."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi import FastAPI

from service.http import admin
from service.http.app import create_app
from service.http.openapi import PROBLEMS
from service.settings import ServeSettings
from service.workers.open_models import open_models
from tests.support.endpoints import TASK_ENDPOINTS
from tests.support.live import Live

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(ServeSettings(), open_models)


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return app.openapi()


def test_every_endpoint_has_an_example_of_request_and_answer(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"]["200"].get("content")
            if content is None:
                assert re.search(r"/(health|ping)$", path), path  # answers with an empty body
            else:
                assert "example" in next(iter(content.values())), path
            assert operation["description"], path
            if method == "post" and not admin.PATHS.fullmatch(path):  # those take no body
                assert "example" in operation["requestBody"]["content"]["application/json"], path


def test_every_task_documents_its_errors_as_problems(document: dict[str, Any]) -> None:
    for endpoint in TASK_ENDPOINTS:
        responses = document["paths"][endpoint.path]["post"]["responses"]
        assert set(responses) == {"200", *map(str, PROBLEMS)}
        for status in PROBLEMS:
            assert list(responses[str(status)]["content"]) == ["application/problem+json"]


def test_a_numpy_file_is_documented_beside_json(document: dict[str, Any]) -> None:
    answer = document["paths"]["/embed"]["post"]["responses"]["200"]
    assert list(answer["content"]) == ["application/json", "application/x-npy", "application/x-ndjson"]
    assert {"X-Model", "X-Usage-Tokens", "X-Truncated", "X-Truncated-Count"} <= set(answer["headers"])
    other = document["paths"]["/classify"]["post"]["responses"]["200"]
    assert (
        list(other["content"]) == ["application/json", "application/x-ndjson"]
        and "X-Model" not in other["headers"]
    )


def test_lines_are_documented_beside_json_for_this_services_own_endpoints_only(
    document: dict[str, Any],
) -> None:
    takes_lines = {
        path
        for path, methods in document["paths"].items()
        if "application/x-ndjson" in methods.get("post", {}).get("requestBody", {}).get("content", {})
    }
    assert takes_lines == {endpoint.path for endpoint in TASK_ENDPOINTS}


def test_bounds_are_those_of_json_schema(document: dict[str, Any]) -> None:
    assert not set(re.findall(r'"(?:ge|gt|le|lt|multiple_of)":', json.dumps(document)))
    properties = document["components"]["schemas"]["NerRequest"]["properties"]
    assert {"type": "number", "minimum": 0, "maximum": 1} in properties["min_score"]["anyOf"]


def test_an_option_that_is_refused_says_what_is_taken(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["DocumentsRequest"]["properties"]
    assert json.dumps(properties["priority"]["enum"]) == "[null, 0]"
    assert properties["priority"]["description"] == "Any other is refused: all requests have one priority."


def test_every_schema_that_is_referred_to_is_there(document: dict[str, Any]) -> None:
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert referred <= set(document["components"]["schemas"])


def test_fields_take_a_string_or_a_list(document: dict[str, Any]) -> None:
    text = document["components"]["schemas"]["NerRequest"]["properties"]["text"]
    assert {option["type"] for option in text["anyOf"]} == {"string", "array"}


def test_lists_that_the_service_refuses_when_empty_are_documented_as_not_empty(
    document: dict[str, Any], live: Live
) -> None:
    fields = [
        (endpoint, name, option)
        for endpoint in TASK_ENDPOINTS
        for name, field in document["components"]["schemas"][endpoint.request.__name__]["properties"].items()
        for option in field.get("anyOf", [])
        if option["type"] == "array"
    ]
    assert len(fields) == 19
    for endpoint, name, option in fields:
        least = 2 if name == "choices" and "minItems" not in option["items"] else 1
        assert option["minItems"] == least, (endpoint.path, name)
        reply = live.post(endpoint.path, endpoint.sent | {name: []})
        assert reply.status == 422 and name in reply.json["detail"], (endpoint.path, name)


def test_building_the_app_loads_nothing(app: FastAPI) -> None:
    assert app.state.service.why_not_ready() is not None


def test_the_docs_need_no_other_host(live: Live) -> None:
    page = live.get("/docs").body.decode()
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    if "docs/assets/" not in page:
        pytest.skip("fastapi-offline is not installed: the page takes its script from a CDN")
    for address in addresses:
        assert live.get(urljoin("/docs", address)).status == 200


def test_every_endpoint_is_in_the_docs_folder(document: dict[str, Any]) -> None:
    pages = [(ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("api", "wires")]
    page = "\n".join(pages)
    assert [path for path in document["paths"] if f"{path}`" not in page] == []
    assert all(f"| {status} |" in page for status in PROBLEMS)


def test_every_metric_is_in_the_docs_folder(live: Live) -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    lines = live.get("/metrics").body.decode().splitlines()
    names = {line.split(" ")[2] for line in lines if line.startswith("# TYPE bert_")}
    missing = {name for name in names if f"`{name}" not in page and not name.endswith("_created")}
    assert not missing
