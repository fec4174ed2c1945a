"""The page at / over the demo models, in Chromium: each task shows what a person would expect."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium, visit
from tests.support.playground import settle
from tests.support.process import address, started
from tests.support.workshop import DEMO, Workshop, has_adapter, why_missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.skipif(not has_adapter(name), reason=why_missing(name)) for name in DEMO),
]


@pytest.fixture(scope="module")
def url(workshop: Workshop) -> Iterator[str]:
    """A bert-serve of several processes with the demo models, and nothing else."""
    bundles = ",".join(str(workshop.demo_bundle(name)) for name in DEMO)
    with started("--bundles", bundles, "--no-keep-tuning", "--request-timeout-ms", "300000") as process:
        yield address(process.until("Ready at"))


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def page(browser: "Browser", url: str) -> Iterator["Page"]:
    """The page, in a browser that is asked for first: without one no bundle is made."""
    with visit(browser, url) as opened:
        yield opened


def try_example(page: "Page", tab: str, name: str) -> str:
    """Choose an example, which runs it; returns what the result says first."""
    page.locator(f"#tab-{tab}").click()
    settle(page)
    with page.expect_response(lambda response: response.url.endswith(f"/{tab}")):
        page.locator(".examples").get_by_role("button", name=name, exact=True).click()
    page.locator(".result[aria-busy=false] .latency").wait_for()
    said: str = page.locator(".result").get_by_role("status").inner_text()
    return said


def test_feelings(page: "Page") -> None:
    assert try_example(page, "classify", "A warm, funny film that I …").startswith("positive")
    assert try_example(page, "classify", "Dull, far too long and badly …").startswith("negative")


def test_names(page: "Page") -> None:
    assert try_example(page, "ner", "News") == ("3 entities: Angela Merkel, PER; Siemens, ORG; Munich, LOC")
    found = try_example(page, "ner", "Emoji and scripts")
    assert "Ada Lovelace, PER" in found and "London, LOC" in found and "Tokyo, LOC" in found
    found = try_example(page, "ner", "Right to left")
    assert "Angela Merkel, PER" in found and "Emmanuel Macron, PER" in found
    marks = page.locator(".passage mark").all_inner_texts()
    assert [re.sub(r"\s*PER$", "", mark) for mark in marks] == ["Angela Merkel", "Emmanuel Macron"]
    assert page.locator(".passage").evaluate("p => getComputedStyle(p).direction") == "rtl"


def test_meaning(page: "Page") -> None:
    assert try_example(page, "similarity", "Help desk").startswith("Nearest: I forgot my login")


def test_answers_and_none(page: "Page") -> None:
    assert try_example(page, "qa", "Place").startswith("Warsaw")
    assert page.locator("mark.answer").inner_text() == "Warsaw"
    assert try_example(page, "qa", "No answer").startswith("No answer")
    assert page.locator("mark.answer").count() == 0


def test_what_no_demo_model_does(page: "Page") -> None:
    assert page.get_by_role("tab", name="Fill mask").count() == 0
    page.get_by_text("3 more tasks without a model: Own labels, Fill mask, Multiple choice").wait_for()
