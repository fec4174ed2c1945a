"""A real Chromium, driven by Playwright. Tests that use it are skipped where either is missing."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
PATIENCE_MS = 60_000
"""Time for anything to appear; on a busy machine that takes long."""


def find_chromium() -> str | None:
    """Return the path of an installed Chromium: CHROMIUM in the environment, else what is on the PATH."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Run Chromium until the block ends; skips the test where it or Playwright is missing."""
    pytest.importorskip("playwright", reason="Playwright is not installed: pip install -e '.[e2e]'")
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium is on the PATH: apt-get install chromium, or set CHROMIUM to its path")
    with launched(path) as browser:
        yield browser


@contextmanager
def launched(path: str) -> Iterator["Browser"]:
    """Run the Chromium at a path until the block ends."""
    from playwright.sync_api import sync_playwright

    # Its sandbox does not work for root, which containers and CI often are.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextmanager
def visit(browser: "Browser", address: str, **context: Any) -> Iterator["Page"]:
    """Open an address in a profile of its own; fails if the page raised an error or broke its policy meanwhile.

    `context` is Playwright's: `viewport`, `color_scheme` and so on.
    """
    profile = browser.new_context(**{"viewport": DESKTOP, "color_scheme": "light", **context})
    profile.set_default_timeout(PATIENCE_MS)
    page = profile.new_page()
    faults = list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    page.goto(address)
    yield page
    profile.close()
    assert not faults


def is_fault(message: Any) -> bool:
    """Tell whether the page is at fault. That a request was refused is no fault: many tests bring that about."""
    return message.type in ("error", "warning") and "Failed to load resource" not in message.text


def violations(page: "Page") -> list[str]:
    """Return what axe finds against WCAG 2.2 AA and good practice."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is in the extra e2e")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}" for each in found for node in each["nodes"]
    ]
