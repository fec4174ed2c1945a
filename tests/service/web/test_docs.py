"""The page at /docs in Chromium: it looks like the others, and leads back to them."""

from pathlib import Path

import pytest

from tests.support.browser import chromium, visit
from tests.support.live import Live, serving


def test_it_has_the_header_and_the_theme_of_the_other_pages(live: Live) -> None:
    if "docs/assets/" not in live.get("/docs").body.decode():
        pytest.skip("fastapi-offline is not installed: the page takes its script from a CDN")
    with chromium() as browser, visit(browser, f"{live.url}/docs", color_scheme="dark") as page:
        page.locator(".opblock").first.wait_for()
        assert page.get_by_role("link", name="API", exact=True).get_attribute("aria-current") == "page"
        background = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(background)
        page.get_by_label("Theme").select_option("light")
        assert page.evaluate(background) != dark
        assert page.locator("html.dark-mode").count() == 0
        page.get_by_role("link", name="Try").click()
        page.locator("#tab-classify").wait_for()


def test_without_the_pages_it_is_swagger_ui_alone(live: Live, bundles: Path) -> None:
    assert b"web/page.css" in live.get("/docs").body
    with serving(bundles=[bundles / "mood"], page=False) as plain:
        body = plain.get("/docs").body
        assert b"swagger-ui" in body and b"web/" not in body
