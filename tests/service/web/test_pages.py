"""The pages as a browser fetches them: headers, caching, the key, and nothing beyond their own files."""

import re
from pathlib import Path

import pytest

from service.web.pages import FOLDER, MEDIA_TYPES, PAGES
from tests.support.live import Live, serving

ROOT = Path(__file__).parents[3]
FILES = sorted(FOLDER.iterdir())
IMPORTED = re.compile(r'(?:from|import) "\./([^"]+)"|(?:src|href)="web/([^"]+)"')


def test_the_files_are_few_and_small() -> None:
    assert {path.suffix for path in FILES} <= set(MEDIA_TYPES)
    assert sum(path.stat().st_size for path in FILES) < 100_000


@pytest.mark.parametrize("path", PAGES)
def test_a_page_and_all_that_it_imports_are_served(live: Live, path: str) -> None:
    page = live.get(path)
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    wanted, seen = linked(page.body), set[str]()
    while wanted:
        name = wanted.pop()
        seen.add(name)
        reply = live.get(f"/web/{name}")
        assert reply.status == 200, name
        assert reply.body == (FOLDER / name).read_bytes()
        wanted |= linked(reply.body) - seen
    assert {"page.css", "lit-html.js", "theme.js"} <= seen


def linked(body: bytes) -> set[str]:
    return {first or second for first, second in IMPORTED.findall(body.decode())}


def test_every_file_is_used(live: Live) -> None:
    texts = b"".join(path.read_bytes() for path in FILES)
    used = linked(texts) | set(PAGES.values())
    assert {path.name for path in FILES} == used


@pytest.mark.parametrize("path", [*PAGES, "/web/page.css", "/web/playground.js", "/web/icon.svg"])
def test_the_policy_lets_nothing_in_from_elsewhere(live: Live, path: str) -> None:
    headers = live.get(path).headers
    policy = dict(rule.partition(" ")[::2] for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_file_that_is_known_is_not_sent_again(live: Live) -> None:
    first = live.get("/web/page.css")
    for sent in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = live.get("/web/page.css", if_none_match=sent)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert live.get("/web/page.css", if_none_match='"other"').status == 200
    assert first.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/nothing.js",
        "/web/../pages.py",
        "/web/%2e%2e/pages.py",
        "/web/..%2fpages.py",
        "/web/%2fetc%2fpasswd",
        "/web/index.html/",
        "/web/page.css%00",
        "/status/",
        "/index.html",
    ],
)
def test_no_path_leads_to_another_file(live: Live, path: str) -> None:
    reply = live.get(path)
    assert (reply.status, reply.json["type"]) == (404, "urn:bert-serve:http")


def test_the_pages_are_open_and_the_models_are_not(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], api_key="correct-horse") as live:
        for path in (*PAGES, "/web/api.js"):
            assert live.get(path).status == 200
        assert live.get("/models").status == 401


def test_without_the_page_the_root_leads_to_the_docs(bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], page=False) as live:
        reply = live.get("/")
        assert (reply.status, reply.headers["location"]) == (307, "docs")
        for path in ("/status", "/web/page.css"):
            assert live.get(path).status == 404
        assert live.post("/classify", {"text": "a film"}).status == 200


def test_the_library_is_the_one_that_is_named() -> None:
    source = (FOLDER / "lit-html.js").read_text(encoding="utf-8")
    version = re.search(r'litHtmlVersions\?\?=\[\]\)\.push\("([\d.]+)"\)', source)
    assert version and "BSD-3-Clause" in source
    for file in ("NOTICE", "licenses/lit-html.md"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "lit-html" in text and version[1] in text, file
