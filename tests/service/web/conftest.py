"""A browser for each file of tests, and a page of the service for each test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium, visit
from tests.support.live import Live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: "Browser", live: Live) -> Iterator["Page"]:
    with visit(browser, live.url) as opened:
        yield opened
