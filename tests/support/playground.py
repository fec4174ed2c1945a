"""Steps on the page at /, for tests that drive it in Chromium."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page


def choose(page: "Page", tab: str, model: str | None = None) -> None:
    """Open the tab of a task, and choose a model."""
    page.locator(f"#tab-{tab}").click()
    if model is not None:
        page.get_by_label("Model", exact=True).select_option(model)


def settle(page: "Page") -> None:
    """Wait until the result of the open tab is there: each tab runs its example when it is opened."""
    page.locator(".result[aria-busy=false]").locator(".latency, .problem").wait_for()


def ask(page: "Page", endpoint: str, **fields: str) -> dict[str, Any]:
    """Fill in the fields, run, and return the body of the response."""
    settle(page)
    for name, text in fields.items():
        page.locator(f"#{endpoint}-{name}").fill(text)
    with page.expect_response(f"**/{endpoint}") as caught:
        page.get_by_role("button", name="Run", exact=True).click()
    settle(page)
    body: dict[str, Any] = caught.value.json()
    return body
