"""The documentation site: its generated pages, and its search in a browser without a network."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from scripts.site import configuration, http_reference
from tests.support.browser import DESKTOP, PHONE, chromium, visit
from tests.support.documents import ROOT, scripts, text_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_page_of_settings_is_up_to_date() -> None:
    command = "python -m scripts.site.configuration > docs/configuration.md"
    assert text_of(ROOT / "docs/configuration.md") == configuration.markdown(), f"run: {command}"


def test_the_page_of_settings_has_every_command() -> None:
    assert {kind.model_config["cli_prog_name"] for kind in configuration.COMMANDS} == set(scripts().values())


def test_the_http_reference_has_every_endpoint_and_field() -> None:
    document = http_reference.document()
    page = http_reference.markdown(document)
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"### {method.upper()} {path}\n" in page
    for name in ("ClassifyRequest", "QaRequest", "EmbeddingsRequest"):
        for field in document["components"]["schemas"][name]["properties"]:
            assert f"`{field}`" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, in an environment that `make docs` has made."""
    mkdocs = ROOT / ".venv-docs/bin/mkdocs"
    if not mkdocs.exists():
        pytest.skip("mkdocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site") / "site"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([mkdocs, "build", "-q", "-d", folder], cwd=ROOT, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def opened() -> Iterator["Browser"]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("place", ["disk", "server"])
def test_search_finds_a_page_without_a_network(site: Path, opened: "Browser", place: str) -> None:
    with served(site) as address:
        start = f"{site.as_uri()}/index.html" if place == "disk" else f"{address}/index.html"
        asked = list[str]()
        with visit(opened, start) as page:
            page.on("request", lambda request: asked.append(request.url))
            page.reload()
            page.locator("[data-md-component=search-query]").fill("max_queue_tokens")
            # The first section that has the word. A page that has it in its text alone comes before, and marks nothing.
            page.locator(".md-search-result__link[href*='h=max_queue_tokens']").first.click()
            page.locator("article code", has_text="max_queue_tokens").first.wait_for()
            page.locator("article mark").first.wait_for()
    assert asked and all(url.startswith((address, site.as_uri(), "data:", "blob:")) for url in asked)


def test_search_answers_what_a_stranger_asks(site: Path, opened: "Browser") -> None:
    questions = {
        "docker own model": "how-do-i-run-my-own-model-in-docker",
        "update without downtime": "how-do-i-update-a-model-or-the-service-without-downtime",
        "pip install": "how-do-i-install-it-with-pip",
        "memory": "how-much-memory-does-it-need",
        "CORS": "how-do-i-set-cors-for-a-page-of-another-site",
        "licence": "what-is-the-licence",
        "license": "what-is-the-licence",
        "languages": "which-languages-does-it-read",
    }
    for words, question in questions.items():
        with visit(opened, f"{site.as_uri()}/index.html") as page:
            page.locator("[data-md-component=search-query]").fill(words)
            page.locator(f".md-search-result__link[href$='#{question}']").first.wait_for(state="attached")
            found = page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
            places = [re.sub(r"\?h=[^#]*", "", link.removeprefix(f"{site.as_uri()}/")) for link in found]
            assert places[:2] == ["faq.html", f"faq.html#{question}"], words
            assert not any(place.startswith(("decisions/", "measurements/")) for place in places[:10]), words


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_no_page_is_wider_than_the_screen(site: Path, opened: "Browser", size: Any) -> None:
    for name in ("index", "configuration", "performance", "reference/http"):
        address = (site / f"{name}.html").as_uri()
        with visit(opened, address, viewport=size) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name


@contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
