"""The page at / in Chromium, with tiny models whose answers mean nothing: that what is shown is what was answered."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bert.tasks.spec import TaskSpec
from tests.support.browser import DESKTOP, PHONE, violations, visit
from tests.support.live import Live, serving
from tests.support.playground import ask, choose, settle
from tests.support.tiny import MAX_TOKENS, write_tiny_bundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

MIXED = "👩‍🔬 Ada 🚀 met שלום עולם and 田中さん in 🇯🇵 Paris e\u0301"
"""Emoji of two and more UTF-16 units, right to left, a combining mark."""
TABS = ("classify", "ner", "similarity", "rerank", "qa", "fill-mask", "multiple-choice", "embed", "tokenize")


def shown(page: "Page", selector: str) -> list[str]:
    return [text.strip() for text in page.locator(f".result {selector}").all_inner_texts()]


def marked(page: "Page") -> list[str]:
    """Return the marked parts of the text, without their labels."""
    own = "marks => marks.map(m => [...m.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join(''))"
    texts: list[str] = page.locator(".passage mark").evaluate_all(own)
    return texts


def passage(page: "Page") -> str:
    """Return the text as it is shown, without labels."""
    own = """p => [...p.childNodes].map(n => n.nodeType === 3 ? n.data : n.nodeType !== 1 ? "" :
             [...n.childNodes].filter(m => m.nodeType === 3).map(m => m.data).join("")).join("")"""
    text: str = page.locator(".passage").evaluate(own)
    return text


def test_a_label_is_shown_with_the_bars_of_all(page: "Page") -> None:
    (result,) = ask(page, "classify", text="a warm film")["results"]
    assert shown(page, ".big")[0].startswith(result["label"])
    assert shown(page, ".bar .name") == [each["label"] for each in result["scores"]]
    widths = page.locator(".result .track span").evaluate_all(
        "bars => bars.map(b => parseFloat(b.style.width))"
    )
    assert widths == pytest.approx([100 * each["score"] for each in result["scores"]], abs=0.01)


def test_every_model_of_the_task_can_be_chosen(page: "Page") -> None:
    options = page.get_by_label("Model", exact=True).locator("option").all_inner_texts()
    assert options == ["entailment", "mood (default)", "stars", "topics"]
    choose(page, "classify", "topics")
    assert ask(page, "classify", text="a film")["model"] == "topics"
    assert "a probability of its own" in page.locator(".result").inner_text()
    choose(page, "classify", "stars")
    (result,) = ask(page, "classify", text="a film")["results"]
    assert shown(page, ".big")[0].startswith(f"{result['score']:.3f}")
    choose(page, "classify", "entailment")
    body = ask(page, "classify", text="a film", text_pair="the film")
    assert body["model"] == "entailment" and len(shown(page, ".bar")) == 3


def test_entities_are_marked_where_they_are_whatever_the_script(page: "Page") -> None:
    choose(page, "ner")
    (result,) = ask(page, "ner", text=MIXED)["results"]
    assert result["entities"], "random weights find some"
    assert marked(page) == [MIXED[e["start"] : e["end"]] for e in result["entities"]]
    assert passage(page) == MIXED
    rows = [row.split("\t") for row in shown(page, "tbody tr")]
    assert [row[2] for row in rows] == [f"{e['start']}–{e['end']}" for e in result["entities"]]


def test_an_answer_is_marked_where_it_is_or_said_to_be_missing(page: "Page") -> None:
    choose(page, "qa")
    (result,) = ask(page, "qa", question="who met Ada", context=MIXED)["results"]
    spans = [each for each in (result, *result["alternatives"]) if each["answer"] is not None]
    assert {MIXED[each["start"] : each["end"]] for each in spans} >= set(marked(page))
    assert passage(page) == MIXED
    assert len(shown(page, ".bar")) == len(spans) + 1, "and no answer"
    none = result["answer"] is None
    assert shown(page, ".big")[0].startswith("No answer" if none else result["answer"])
    assert (page.locator("mark.answer").count() == 0) == none


def test_candidates_are_ranked(page: "Page") -> None:
    choose(page, "similarity")
    candidates = ["the dull film", "angela met", "where is munich"]
    ranked = ask(page, "similarity", text="a film", candidates="\n".join(candidates) + "\n\n")["results"]
    assert shown(page, ".bar .name") == [candidates[each["index"]] for each in ranked]
    assert shown(page, ".bar .number") == [f"{each['score']:.3f}" for each in ranked]


def test_a_query_is_answered_by_embeddings_or_a_cross_encoder(
    browser: "Browser", bundles: Path, tmp_path: Path
) -> None:
    spec = TaskSpec(
        "classification", ("relevance",), problem_type="regression", pair=True, max_tokens=MAX_TOKENS
    )
    write_tiny_bundle(tmp_path / "judge", "judge", spec, 0)
    folders = [bundles / "meaning", bundles / "mood", tmp_path / "judge"]
    candidates = ["the dull film", "angela met", "where is munich"]
    with serving(bundles=folders) as live, visit(browser, f"{live.url}/#rerank") as page:
        options = page.get_by_label("Model", exact=True).locator("option").all_inner_texts()
        assert set(options) == {"judge", "meaning (default)"}, "a classifier of single texts does not rank"
        assert page.get_by_label("Model", exact=True).input_value() == "judge"
        for model, said in [("judge", "cross-encoder"), ("meaning", "cosine")]:
            choose(page, "rerank", model)
            answered = ask(page, "rerank", query="who met", candidates="\n".join(candidates) + "\n\n")
            assert answered["model"] == model
            assert shown(page, ".bar .name") == [candidates[each["index"]] for each in answered["results"]]
            assert shown(page, ".bar .number") == [f"{each['score']:.3f}" for each in answered["results"]]
            assert said in page.locator(".result").inner_text()
        plain = live.post("/rerank", {"query": "who met", "candidates": candidates}).json
        assert plain["model"] == "judge", "the page offers first what a request without a model gets"


def test_the_best_choice_is_shown_before_the_others(page: "Page") -> None:
    choose(page, "multiple-choice")
    choices = ["it was warm", "שלום 🚀", "it was not"]
    (result,) = ask(page, "multiple-choice", prompt="a film", choices="\n".join(choices))["results"]
    assert shown(page, ".big")[0].startswith(result["choice"])
    assert shown(page, ".bar .name") == [choices[each["index"]] for each in result["scores"]]


def test_a_model_with_prompts_lets_one_choose(browser: "Browser", tmp_path: Path) -> None:
    spec = TaskSpec("similarity", max_tokens=MAX_TOKENS, prompts={"ask": "who is ", "tell": "it is "})
    write_tiny_bundle(tmp_path / "plain", "plain", spec, 0)
    write_tiny_bundle(tmp_path / "asks", "asks", replace(spec, default_prompt_name="ask"), 0)
    with serving(bundles=[tmp_path]) as live, visit(browser, f"{live.url}/#similarity") as page:
        for model, prompt, expected in [
            ("plain", "none", {}),
            ("plain", "tell", {"prompt_name": "tell"}),
            ("asks", "default (ask)", {}),
            ("asks", "none", {"prompt_name": ""}),
        ]:
            choose(page, "similarity", model)
            page.get_by_label("Prompt", exact=True).select_option(prompt)
            ask(page, "similarity", text="a film", candidates="the film")
            page.get_by_role("tab", name="JSON").click()
            body = json.loads(page.locator("#codes-panel .code").inner_text())
            assert {name: text for name, text in body.items() if "prompt" in name} == expected, (
                model,
                prompt,
            )


def test_a_model_of_inference_takes_labels(browser: "Browser", tmp_path: Path) -> None:
    spec = TaskSpec("classification", ("entailment", "contradiction"), pair=True, max_tokens=MAX_TOKENS)
    write_tiny_bundle(tmp_path / "nli", "nli", spec, 0)
    with serving(bundles=[tmp_path]) as live, visit(browser, f"{live.url}/#own-labels") as page:
        settle(page)
        page.locator("#own-labels-text").fill("a warm film")
        page.locator("#own-labels-labels").fill("warm\nשלום 🚀")
        page.get_by_label("Several may hold").check()
        with page.expect_response("**/classify") as caught:
            page.get_by_role("button", name="Run", exact=True).click()
        settle(page)
        (result,) = caught.value.json()["results"]
        assert json.loads(caught.value.request.post_data or "")["multi_label"] is True
        assert shown(page, ".bar .name") == [each["label"] for each in result["scores"]]
        assert {each["label"] for each in result["scores"]} == {"warm", "שלום 🚀"}
        assert not violations(page)


def test_masks_are_filled_in_their_place(page: "Page") -> None:
    choose(page, "fill-mask")
    text = "🚀 a [MASK] film and [MASK] שלום"
    (result,) = ask(page, "fill-mask", text=text)["results"]
    first, second = (mask["candidates"][0] for mask in result["masks"])
    assert len(shown(page, ".bars")) == 2
    filled = passage(page)
    assert filled.startswith("🚀 a") and filled.endswith(" שלום") and "[MASK]" not in filled
    for candidate in (first, second):
        assert candidate["token"].removeprefix("##") in filled
    # With one mask, the text is the sequence that the service says.
    (result,) = ask(page, "fill-mask", text="🚀 a [MASK] film")["results"]
    assert passage(page) == result["masks"][0]["candidates"][0]["sequence"]


def test_a_mask_is_put_where_the_cursor_is(page: "Page") -> None:
    choose(page, "fill-mask")
    page.locator("#fill-mask-text").fill("a  film")
    page.locator("#fill-mask-text").evaluate("area => area.setSelectionRange(2, 2)")
    page.get_by_role("button", name="Insert [MASK]").click()
    assert page.locator("#fill-mask-text").input_value() == "a [MASK] film"


def test_a_vector_and_tokens_are_shown(page: "Page") -> None:
    choose(page, "embed")
    (result,) = ask(page, "embed", text="a film")["results"]
    assert page.locator(".strip span").count() == len(result["embedding"])
    choose(page, "tokenize", "mood")
    (result,) = ask(page, "tokenize", text="a film")["results"]
    assert [each.split()[0] for each in shown(page, ".token")] == [each["text"] for each in result["tokens"]]


def test_latency_is_shown_by_stage(page: "Page") -> None:
    ask(page, "classify", text="a warm film")
    stages = page.locator(".latency dl > div").all_inner_texts()
    assert [stage.split()[0] for stage in stages] == [
        *("tokenize", "queue", "inference", "decode"),
        *("other", "network"),
    ]
    parts = [float(stage.split()[-2]) for stage in stages]
    total = float(page.locator(".latency h3 small").inner_text().split()[0])
    assert all(part >= 0 for part in parts) and sum(parts) == pytest.approx(total, rel=0.05, abs=0.1)


def test_an_error_is_told_with_its_request_and_at_its_field(page: "Page") -> None:
    body = ask(page, "classify", text="film " * 100)
    problem = page.get_by_role("alert")
    assert "422" in problem.inner_text() and body["request_id"] in problem.inner_text()
    area = page.locator("#classify-text")
    assert area.get_attribute("aria-invalid") == "true"
    assert "102 tokens" in page.locator(f"#{area.get_attribute('aria-describedby')}").inner_text()
    page.get_by_label("Cut a text that is too long").check()
    ask(page, "classify")
    assert page.get_by_role("alert").count() == 0
    assert "was cut" in page.locator(".result").inner_text()


def test_an_error_of_a_pair_is_told_at_its_first_field(page: "Page") -> None:
    choose(page, "classify", "entailment")
    ask(page, "classify", text="film " * 20, text_pair="film " * 20)
    assert page.locator("#classify-text").get_attribute("aria-invalid") == "true"
    assert page.locator("#classify-text_pair").get_attribute("aria-invalid") is None


def test_a_task_without_a_model_says_so_and_why(browser: "Browser", bundles: Path, tmp_path: Path) -> None:
    broken = tmp_path / "names"
    broken.mkdir()
    for file in (bundles / "names").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.onnx").write_bytes(b"no graph")
    with (
        serving(bundles=[bundles / "mood", broken]) as live,
        visit(browser, f"{live.url}/#qa", viewport=PHONE) as page,
    ):
        page.locator("details.others[open]").wait_for()
        assert page.locator("#tab-qa").count() == 0
        choose(page, "ner")
        assert "No model for this task" in page.locator("#tabs-panel").inner_text()
        assert "names was left out" in page.locator("#tabs-panel").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not violations(page)


def test_a_key_is_asked_for_and_kept_for_the_tab_only(browser: "Browser", bundles: Path) -> None:
    with serving(bundles=[bundles / "mood"], api_key="correct-horse") as live:
        with visit(browser, live.url) as page:
            page.get_by_label("API key").fill("wrong-horse")
            page.get_by_role("button", name="Continue").click()
            page.get_by_text("The service refused that key").wait_for()
            assert not violations(page)
            page.get_by_label("API key").fill("correct-horse")
            page.get_by_role("button", name="Continue").click()
            page.locator("#tab-classify").wait_for()
            ask(page, "classify", text="a film")
            assert "$BERT_API_KEY" in page.locator(".code").last.inner_text()
            assert "correct-horse" not in page.content()
            page.goto(f"{live.url}/status")
            page.get_by_role("heading", name="Models").wait_for()
            assert page.evaluate("Object.keys(localStorage)") == []
            page.get_by_role("button", name="Forget key").click()
            page.get_by_label("API key").wait_for()
        with visit(browser, live.url) as page:
            page.get_by_label("API key").wait_for()


@pytest.mark.parametrize("name", ["curl", "Python"])
def test_what_is_shown_to_copy_asks_the_same(page: "Page", name: str) -> None:
    choose(page, "qa")
    sent = {"question": 'who\'s "Ada" \\ $HOME `x`?\t', "context": MIXED + "\nand\u2028so on 'it' is"}
    asked = ask(page, "qa", **sent)
    page.get_by_role("tab", name=name).click()
    code = page.locator("#codes-panel .code").evaluate("code => code.textContent")
    command = [sys.executable, "-"] if name == "Python" else ["bash", "-c", f"set -eu\n{code}"]
    run = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    if name == "Python":
        assert run.stdout.strip() == str(asked["results"])
    else:
        assert json.loads(run.stdout)["results"] == asked["results"]
    page.get_by_role("tab", name="JSON").click()
    body = json.loads(page.locator("#codes-panel .code").evaluate("code => code.textContent"))
    assert body == {**sent, "top_k": 3}
    page.get_by_role("tab", name="Response").click()
    assert json.loads(page.locator("#codes-panel .code").evaluate("code => code.textContent")) == asked


def test_everything_is_done_with_the_keyboard(page: "Page") -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.locator("#tab-classify").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-ner"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == "tab-tokenize"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-classify"
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "chip"
    page.locator("#classify-text").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("a warm film")
    page.keyboard.press("Control+Enter")
    page.locator(".latency").wait_for()
    assert page.evaluate("document.activeElement.id") == "classify-text"
    assert "%" in page.get_by_role("status").inner_text()


def test_a_new_question_ends_the_one_before(page: "Page") -> None:
    held = list[Any]()
    settle(page)  # the example that a tab runs by itself is not the one to hold
    page.route("**/classify", lambda route: held.append(route) if not held else route.continue_())
    page.locator("#classify-text").fill("a dull film")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Running").click()
    page.locator(".latency").wait_for()
    held[0].continue_()
    page.wait_for_timeout(100)
    assert page.get_by_role("alert").count() == 0


def test_a_tab_has_an_address(browser: "Browser", live: Live) -> None:
    with visit(browser, f"{live.url}/#similarity") as page:
        page.locator("#tab-similarity[aria-selected=true]").wait_for()
        choose(page, "qa")
        assert page.url.endswith("#qa")


def test_it_works_under_a_path_of_a_proxy(browser: "Browser", live: Live) -> None:
    with visit(browser, live.url) as page:
        proxied = live.url + "/bert"

        def forward(route: "Route") -> None:
            route.fulfill(response=route.fetch(url=route.request.url.replace(proxied, live.url)))

        page.route(f"{proxied}/**", forward)
        page.goto(f"{proxied}/")
        page.locator("#tab-classify").wait_for()
        ask(page, "classify", text="a film")
        assert f"curl {proxied}/classify" in page.locator("#codes-panel .code").inner_text()
        page.get_by_role("link", name="Status").click()
        page.get_by_role("heading", name="Models").wait_for()
        assert page.url == f"{proxied}/status"


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"]
)
def test_no_tab_is_hard_to_read_or_wider_than_the_screen(
    browser: "Browser", live: Live, scheme: str, viewport: dict[str, int]
) -> None:
    with visit(browser, live.url, color_scheme=scheme, viewport=viewport) as page:
        for tab in TABS:
            choose(page, tab)
            page.locator(".examples .chip").first.click()
            page.locator(".result[aria-busy=false]").locator(".latency, .problem").wait_for()
            page.wait_for_timeout(300)  # the bars grow
            assert not violations(page), tab
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab


def test_the_theme_that_is_chosen_stays(page: "Page", live: Live) -> None:
    def background() -> str:
        colour: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return colour

    light = background()
    page.get_by_label("Theme").select_option("dark")
    dark = background()
    assert light != dark
    page.goto(f"{live.url}/status")
    assert background() == dark
    page.get_by_label("Theme").select_option("")
    assert background() == light
