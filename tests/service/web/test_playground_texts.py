"""The page at / in Chromium: what becomes of a text that is edited, empty, too long, unknown, or not answered."""

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import DESKTOP, PHONE, violations, visit
from tests.support.live import Live, eventually
from tests.support.playground import ask, choose, settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

UNKNOWN = "🦜 ꙮ 🦚 film"
"""Four pieces, three of them unknown."""
LONG = "film " * 100
"""More tokens than the tiny models read."""


def code(page: "Page", name: str) -> str:
    page.get_by_role("tab", name=name).click()
    text: str = page.locator("#codes-panel .code").evaluate("code => code.textContent")
    return text


def run(page: "Page") -> "Locator":
    return page.locator("button.primary")


def pill(page: "Page") -> str:
    words: str = page.locator(".pill").evaluate("pill => `${pill.className}: ${pill.textContent}`")
    return words


def test_the_code_asks_for_the_text_that_is_in_the_field(page: "Page") -> None:
    ask(page, "classify", text="a dull film")
    changed = page.get_by_text("changed since this result")
    assert changed.count() == 0
    page.locator("#classify-text").fill("a warm film")
    changed.wait_for()
    for name in ("curl", "Python", "JSON"):
        assert "a warm film" in code(page, name) and "a dull film" not in code(page, name)
    page.get_by_label("Cut a text that is too long").check()
    assert json.loads(code(page, "JSON")) == {"text": "a warm film", "truncate": True}
    ask(page, "classify")
    assert changed.count() == 0


def test_copied_is_said_for_a_moment(browser: "Browser", live: Live) -> None:
    with visit(browser, live.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_role("button", name="Copy", exact=True).click()
        page.get_by_role("button", name="Copied", exact=True).wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith("curl ")
        page.get_by_role("button", name="Copy", exact=True).wait_for()


@pytest.mark.parametrize(
    ("tab", "field"),
    [
        *(("classify", "text"), ("ner", "text"), ("similarity", "candidates"), ("rerank", "query")),
        *(("qa", "context"), ("multiple-choice", "choices"), ("tokenize", "text")),
    ],
)
def test_run_is_off_while_a_text_is_empty(page: "Page", tab: str, field: str) -> None:
    choose(page, tab)
    settle(page)
    assert run(page).is_enabled()
    sent = list[str]()
    page.on("request", lambda request: sent.append(request.url))
    for empty in ("", " \n "):
        page.locator(f"#{tab}-{field}").fill(empty.replace("\n", "") if field == "query" else empty)
        page.locator("button.primary:disabled").wait_for()
        page.locator(f"#{tab}-{field}").press("Control+Enter")
    page.wait_for_timeout(100)
    assert not sent
    page.locator(f"#{tab}-{field}").fill("a film")
    page.locator("button.primary:enabled").wait_for()


def test_an_answer_about_unknown_pieces_has_a_remark(page: "Page") -> None:
    (warning,) = ask(page, "classify", text=UNKNOWN)["warnings"]
    assert f"text: {warning['message']}" in page.locator(".result .remark").inner_text()
    assert warning["message"] in page.get_by_role("status").inner_text()
    assert not violations(page)
    ask(page, "classify", text="a film")
    assert page.locator(".remark").count() == 0


def test_a_service_that_is_gone_is_told_in_words_until_it_is_back(page: "Page") -> None:
    settle(page)
    assert pill(page).startswith("pill good")
    page.context.set_offline(True)
    run(page).click()
    problem = page.get_by_role("alert")
    assert "The service cannot be reached" in problem.inner_text()
    assert "fetch" not in problem.inner_text()
    assert pill(page) == "pill bad: no answer"
    page.context.set_offline(False)
    eventually(lambda: pill(page).startswith("pill good"))
    ask(page, "classify")
    assert problem.count() == 0


def test_a_reload_keeps_the_texts_in_this_tab_of_the_browser(browser: "Browser", live: Live) -> None:
    with visit(browser, f"{live.url}/#classify") as page:
        choose(page, "classify", "topics")
        page.locator("#classify-text").fill("a long film")
        page.get_by_label("Cut a text that is too long").check()
        choose(page, "qa")
        page.locator("#qa-question").fill("who met")
        for _ in range(2):
            page.reload()
            assert page.locator("#qa-question").input_value() == "who met"
            choose(page, "classify")
            assert page.get_by_label("Model", exact=True).input_value() == "topics"
            assert page.locator("#classify-text").input_value() == "a long film"
            assert page.get_by_label("Cut a text that is too long").is_checked()
            choose(page, "qa")
        assert page.evaluate("Object.keys(localStorage)") == []
        other = page.context.new_page()
        other.goto(f"{live.url}/#qa")
        assert other.locator("#qa-question").input_value() != "who met"


def test_a_text_is_kept_when_its_model_is_gone_after_the_reload(page: "Page") -> None:
    choose(page, "classify", "topics")
    page.locator("#classify-text").fill("a long film")

    def without_topics(route: "Route") -> None:
        body = route.fetch().json()
        body["models"] = [each for each in body["models"] if each["name"] != "topics"]
        route.fulfill(json=body)

    page.route("**/models", without_topics)
    page.reload()
    page.locator("#classify-text").wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "mood"
    assert page.locator("#classify-text").input_value() == "a long film"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_long_results_scroll_in_their_own_box(
    browser: "Browser", live: Live, viewport: dict[str, int]
) -> None:
    with visit(browser, live.url, viewport=viewport) as page:
        for tab in ("ner", "tokenize"):
            choose(page, tab)
            ask(page, tab, text="angela met " * 2_660)
            assert page.evaluate("document.documentElement.scrollHeight") < 3 * viewport["height"], tab
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
            view = page.locator(".result .view")
            assert view.evaluate("view => view.scrollHeight > 2 * view.clientHeight"), tab
        choose(page, "ner")
        ask(page, "ner", text="angela met " * 40)  # axe takes minutes for 5,320 words
        assert view.evaluate("view => view.scrollHeight > view.clientHeight")
        assert not violations(page)


def test_a_text_that_is_too_long_can_be_read_in_windows_or_cut(page: "Page") -> None:
    ways: dict[str, dict[str, object]] = {"in windows": {"windows": "mean"}, "Cut": {"truncate": True}}
    for button, body in ways.items():
        ask(page, "classify", text=LONG)
        assert not violations(page)
        with page.expect_response("**/classify") as caught:
            page.get_by_role("alert").get_by_role("button", name=button).click()
        assert caught.value.status == 200
        assert caught.value.request.post_data_json == {"text": LONG, **body}
        page.locator(".latency").wait_for()
        assert json.loads(code(page, "JSON")) == {"text": LONG, **body}
        page.get_by_label("Long texts in windows").select_option("no")
        page.get_by_label("Cut a text that is too long").uncheck()


def test_a_mistake_is_no_longer_shown_at_a_field_that_was_edited(page: "Page") -> None:
    ask(page, "classify", text=LONG)
    page.locator("#classify-text[aria-invalid=true]").wait_for()
    page.locator("#classify-text").fill("a film")
    page.locator("#classify-text:not([aria-invalid])").wait_for()


def test_only_what_the_endpoint_takes_is_offered(page: "Page") -> None:
    def offered() -> list[str]:
        return page.get_by_role("alert").get_by_role("button").all_inner_texts()

    choose(page, "embed")
    ask(page, "embed", text=LONG)
    assert offered() == ["Cut it"]
    choose(page, "classify", "entailment")
    ask(page, "classify", text=LONG, text_pair="a film")
    assert offered() == ["Cut it"], "pairs are not read in windows"
    choose(page, "fill-mask")
    ask(page, "fill-mask", text=f"{LONG} [MASK]")
    assert offered() == [], "a mask might be lost"
