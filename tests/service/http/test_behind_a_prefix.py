"""The pages and the documentation behind a proxy that serves them under a path and strips it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from tests.support.browser import chromium, visit
from tests.support.live import Client, Live, serving
from tests.support.prefix_proxy import under

ADDRESS = re.compile(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""")


@pytest.fixture(scope="module")
def front(live: Live) -> Iterator[Client]:
    with under("/bert", live) as client:
        yield client


@pytest.mark.parametrize("page", ["/bert/", "/bert/status", "/bert/docs"])
def test_all_that_a_page_loads_is_under_the_path(front: Client, page: str) -> None:
    found = ADDRESS.findall(front.get(page).body.decode())
    assert len(found) >= 4
    for address in {urljoin(page, one or other) for one, other in found}:
        assert front.get(address).status == 200, address


def test_the_document_names_the_address_that_it_has_in_front(front: Client) -> None:
    document = front.get("/bert/openapi.json").json
    (server,) = document["servers"]
    base = urljoin(f"{front.url}/bert/openapi.json", server["url"]).rstrip("/")
    assert front.post(urlsplit(f"{base}/classify").path, {"text": "a film"}).status == 200


def test_without_the_pages_the_root_leads_to_the_docs(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], page=False) as bare, under("/bert", bare) as front:
        reply = front.get("/bert/")
        assert (reply.status, urljoin("/bert/", reply.headers["location"])) == (307, "/bert/docs")


@pytest.mark.slow
def test_what_the_docs_send_arrives(front: Client) -> None:
    with chromium() as browser, visit(browser, f"{front.url}/bert/docs") as page:
        page.locator("#operations-tasks-classify_classify_post .opblock-summary-control").click()
        page.get_by_role("button", name="Try it out").click()
        with page.expect_response("**/classify") as caught:
            page.get_by_role("button", name="Execute").click()
        assert caught.value.url == f"{front.url}/bert/classify"
        assert caught.value.status == 200, json.dumps(caught.value.json())
