"""The page at / in Chromium: what it asks by itself, its options, links to a request, and lists of texts."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import violations, visit
from tests.support.live import Live, serving
from tests.support.open_ner import PIECES, SPEC, tokenizer_json
from tests.support.playground import ask, choose, settle
from tests.support.tiny import write_tiny_bundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

DROP = """([area, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "texts.txt", { type: "text/plain" }));
  area.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
}"""


SHORT = {
    "classify": {"text": "a film"},
    "ner": {"text": "in munich"},
    "similarity": {"text": "a film", "candidates": "the film\nmunich"},
    "rerank": {"query": "a film", "candidates": "the film\nmunich"},
    "qa": {"question": "who met", "context": "angela met"},
    "multiple-choice": {"prompt": "a film", "choices": "the film\nmunich"},
}
"""Texts that the tiny models can read."""


def body(page: "Page") -> Any:
    """Return the request that the page shows to copy."""
    page.get_by_role("tab", name="JSON").click()
    return json.loads(page.locator("#codes-panel .code").evaluate("code => code.textContent"))


def rows(page: "Page") -> list[list[str]]:
    return [row.split("\t") for row in page.locator(".result tbody tr").all_inner_texts()]


def test_each_tab_runs_its_example_when_it_is_opened_and_once(page: "Page") -> None:
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    settle(page)
    for tab in ("similarity", "tokenize", "similarity"):
        choose(page, tab)
        settle(page)
        assert page.locator(".result .big, .result .bar, .result .problem").count()
    assert [each for each in asked if each in ("similarity", "tokenize")] == ["similarity", "tokenize"]


def test_a_model_shows_its_own_examples(page: "Page") -> None:
    settle(page)
    chips = page.locator(".examples .chip")
    assert chips.first.inner_text() == "A warm, funny film that I \u2026"
    choose(page, "classify", "topics")
    settle(page)
    assert chips.all_inner_texts() == ["the film was long", "angela met merkel in munich"]
    assert page.locator("#classify-text").input_value() == "the film was long"
    page.locator("#classify-text").fill("my own film")
    choose(page, "classify", "stars")
    assert page.locator("#classify-text").input_value() == "my own film", "what was typed stays"


def test_what_is_done_to_serve_8_bits_is_told_beside_the_model(browser: "Browser", live: Live) -> None:
    steps: list[Any] = [
        {"step": "rounding", "done": 0.4, "seconds_left": 29.2, "error": None},
        None,  # the bundle is there, and is being opened
        {"step": "failed", "done": None, "seconds_left": None, "error": "no space is left"},
    ]

    def with_export(route: "Route") -> None:
        answer = route.fetch().json()
        for model in answer["models"]:
            model["export"] = steps[0]
            if len(steps) == 1:
                model["precision"] = "int8"
        route.fulfill(json=answer)

    with visit(browser, "about:blank") as page:
        page.route("**/models", with_export)
        page.goto(live.url)
        facts = page.locator("#classify-model-facts")
        facts.get_by_text("8 bits are being made, 40%, 30 s left").wait_for()
        steps.pop(0)
        facts.get_by_text(re.compile(r"^fp32 · reads")).wait_for()
        steps.pop(0)
        facts.get_by_text(re.compile(r"^int8 · 8 bits could not be made: no space is left")).wait_for()


@pytest.mark.parametrize(
    ("tab", "label", "value", "sent"),
    [
        ("classify", "Labels at most", "1", {"top_k": 1}),
        ("classify", "Long texts in windows", "mean", {"windows": "mean"}),
        ("ner", "Scores from", "0.5", {"min_score": 0.5}),
        ("ner", "Label of a word", "simple", {"aggregation": "simple"}),
        ("similarity", "Candidates at most", "1", {"top_k": 1}),
        ("rerank", "Passages at most", "1", {"top_k": 1}),
        ("qa", "Answers at most", "1", {"top_k": 1}),
        ("multiple-choice", "Choices at most", "1", {"top_k": 1}),
    ],
)
def test_an_option_is_sent(page: "Page", tab: str, label: str, value: str, sent: dict[str, Any]) -> None:
    choose(page, tab)
    settle(page)
    control = page.get_by_label(label)
    if control.evaluate("control => control.tagName") == "SELECT":
        control.select_option(value)
    else:
        control.fill(value)
    answered = ask(page, tab, **SHORT[tab])
    assert body(page).items() >= sent.items()
    assert "results" in answered


def test_entities_of_ones_own_labels(browser: "Browser", bundles: Path, tmp_path: Path) -> None:
    write_tiny_bundle(
        tmp_path / "open", "open", SPEC["markerV0"], 5, tokenizer_json=tokenizer_json(), vocab_size=PIECES
    )
    with serving(bundles=[bundles / "names", tmp_path]) as live, visit(browser, live.url) as page:
        choose(page, "ner")
        settle(page)
        assert page.get_by_label("Model", exact=True).input_value() == "names"
        assert not page.locator("#ner-labels").count() and "labels" not in body(page)
        choose(page, "ner", "open")
        settle(page)
        assert page.locator("#ner-labels").input_value(), "the model's example has labels"
        page.get_by_label("Scores over").fill("0.3")
        found = ask(page, "ner", text="angela met merkel in munich", labels="person\na film")
        assert body(page)["labels"] == ["person", "a film"] and body(page)["threshold"] == 0.3
        (result,) = found["results"]
        assert [row[1] for row in rows(page)] == [each["label"] for each in result["entities"]] != []
        hues = {"person": "hue-0", "a film": "hue-1"}
        for tag in page.locator(".result tbody .tag").all():
            assert hues[tag.inner_text()] in (tag.get_attribute("class") or "")
        assert not violations(page)


def test_a_link_opens_the_same_request_elsewhere(browser: "Browser", live: Live) -> None:
    text = "a warm film & 100% \U0001f680\nשלום?"
    with visit(browser, live.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        choose(page, "classify", "topics")
        page.get_by_label("Labels at most").fill("2")
        page.get_by_label("Cut a text that is too long").check()
        ask(page, "classify", text=text)
        shown = body(page)
        page.get_by_role("button", name="Copy link").click()
        page.get_by_role("button", name="Copied").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
    asked = list[str]()
    with visit(browser, "about:blank") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(link)
        settle(page)
        assert page.locator("#classify-text").input_value() == text
        assert body(page) == shown == {"text": text, "truncate": True, "top_k": 2, "model": "topics"}
        assert page.url == f"{live.url}/#classify", "what is edited now is kept by a reload"
        page.locator("#classify-text").fill("a dull film")
        page.reload()
        assert page.locator("#classify-text").input_value() == "a dull film"
        page.goto(f"{live.url}/#ner?text=in+munich&model=gone&odd=1")  # only the fragment changes
        settle(page)
        assert page.locator("#ner-text").input_value() == "in munich"
        assert page.get_by_label("Model", exact=True).input_value() == "names"
    assert not [url for url in asked if "warm" in url.partition("#")[0]], (
        "no server is told what a link holds"
    )


def test_each_line_can_be_a_text(page: "Page") -> None:
    texts = ["a warm film", "a dull film", "שלום"]
    for tab in ("classify", "ner", "embed", "tokenize", "fill-mask"):
        choose(page, tab)
        settle(page)
        page.get_by_label("Each line is a text").check()
        lines = [f"{text} [MASK]" for text in texts] if tab == "fill-mask" else texts
        answered = ask(page, tab, text="\n".join([*lines[:1], "", *lines[1:]]))
        assert len(answered["results"]) == 3 and body(page)["text"] == lines
        assert [row[0] for row in rows(page)] == lines
    assert not violations(page)
    choose(page, "classify")
    settle(page)
    answered = ask(page, "classify")
    assert [row[1].partition(",")[0] for row in rows(page)] == [each["label"] for each in answered["results"]]


def test_a_file_is_dropped_on_a_field_or_chosen(page: "Page", tmp_path: Path) -> None:
    settle(page)
    page.evaluate(DROP, [page.locator("#classify-text").element_handle(), "a warm film\r\na dull film\r\n"])
    page.locator("#classify-text").evaluate(  # the file is read beside the page's script
        "async area => { while (area.value !== 'a warm film\\na dull film') await new Promise(requestAnimationFrame); }"
    )
    assert page.get_by_label("Each line is a text").is_checked()
    assert len(ask(page, "classify")["results"]) == 2
    file = tmp_path / "one.txt"
    file.write_text("a film\n")
    page.get_by_label("Open a file as Text").set_input_files(file)
    page.locator("#classify-text").evaluate(
        "async area => { while (area.value !== 'a film') await new Promise(requestAnimationFrame); }"
    )
    assert not page.get_by_label("Each line is a text").is_checked()
    file.write_bytes(b"\x00\x01")
    page.get_by_label("Open a file as Text").set_input_files(file)
    page.get_by_role("alert").get_by_text("one.txt is not a text").wait_for()
    page.evaluate(DROP, [page.locator("h1").element_handle(), "beside every field"])
    assert page.url.startswith("http"), "the browser did not open the file in place of the page"


def test_tabs_stay_where_they_are(page: "Page") -> None:
    def places() -> list[float]:
        found: list[float] = page.locator("#main [role=tab]").evaluate_all(
            "tabs => tabs.flatMap(t => { const r = t.getBoundingClientRect(); return [r.left, r.top, r.width]; })"
        )
        return found

    settle(page)
    before = places()
    for tab in ("embed", "qa", "tokenize"):
        choose(page, tab)
        settle(page)
        assert places()[: 3 * 9] == before[: 3 * 9], tab


def test_tasks_without_a_model_are_folded_with_models_to_get(browser: "Browser", bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"]) as live:
        with visit(browser, live.url) as page:
            settle(page)
            assert page.locator("#tabs-panel").count() == 1
            assert page.locator("[role=tablist]").first.get_by_role("tab").all_inner_texts() == [
                "Classify",
                "Tokenize",
            ]
            others = page.locator("details.others")
            assert "8 more tasks without a model: Own labels, Entities" in others.inner_text()
            assert not others.get_by_role("table").is_visible()
            others.locator("summary").click()
            assert "--model dslim/bert-base-NER" in others.inner_text()
            assert not violations(page)
        with visit(browser, f"{live.url}/#qa") as page:
            page.locator("details.others[open]").wait_for()
            assert page.locator("#tab-classify[aria-selected=true]").count() == 1
