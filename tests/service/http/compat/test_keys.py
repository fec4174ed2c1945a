"""Which requests need a key, over all routes; and names of models that would be words of routes."""

import re
from itertools import product

import pytest

from bert.names import ROUTE_WORDS
from service.http import admin
from service.http.app import create_app
from service.settings import ServeSettings
from service.workers.open_models import open_models
from tests.support.live import Live

PATHS = [str(getattr(route, "path", "")) for route in create_app(ServeSettings(), open_models).routes]
WITHOUT_KEY = re.compile(
    r"/|/status|/docs|/docs/assets/.*|/openapi\.json|/web/[^/]+|/health/(live|ready)|/metrics|/ping|"
    r"/tei/?|/tei(/[^/]+)?/(health|ping)|/hf/[^/]+/health|"
    r"/v2/health/(live|ready)|/v2/models/[^/]+(/versions/[^/]+)?/ready"
)
"""Paths of probes and pages, for GET and HEAD."""
WORDS = ["ping", "health", "ready"]


def filled(path: str) -> set[str]:
    """Return a route's paths with each word in each place."""
    names = re.findall(r"{(\w+)}", path)
    return {
        path.format(**dict(zip(names, words, strict=True))) for words in product(WORDS, repeat=len(names))
    }


@pytest.mark.parametrize("route", sorted({*PATHS, "/docs/assets/swagger-ui.css", "/nothing"}))
def test_only_probes_and_pages_need_no_key(keyed: Live, route: str) -> None:
    for path in filled(route):
        is_open = WITHOUT_KEY.fullmatch(path) is not None
        for method in ("GET", "HEAD"):
            assert (keyed.request(method, path).status != 401) is is_open, (method, path)
        for method in ("POST", "PUT"):
            reply = keyed.request(method, path, b"{}", {"content-type": "application/json"})
            has_own_key = method == "POST" and admin.PATHS.fullmatch(path)
            assert reply.status == (403 if has_own_key else 401), (method, path)


def test_the_document_says_which_operations_need_no_key(keyed: Live) -> None:
    for path, methods in keyed.get("/openapi.json").json["paths"].items():
        for method, operation in methods.items():
            is_open = method == "get" and WITHOUT_KEY.fullmatch(path) is not None
            assert (operation.get("security") == []) is is_open, (method, path)


def test_words_of_routes_are_no_names_of_models() -> None:
    routes = [path.split("/") for path in PATHS]
    found = set()
    for one, other in product(routes, repeat=2):
        if len(one) == len(other) and "{model}" in one:
            place = one.index("{model}")
            pairs = zip(one, other, strict=True)
            if all(a == b or "{" in a + b for number, (a, b) in enumerate(pairs) if number != place):
                found.add(other[place])
    assert {word for word in found if re.fullmatch(r"\w+", word)} == ROUTE_WORDS | {"similarity"}
