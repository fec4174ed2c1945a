"""The page at /status in Chromium: its numbers are those of /metrics and /models."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import DESKTOP, PHONE, violations, visit
from tests.support.live import Live, eventually, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUANTILES = """async () => {
  const prometheus = await import("./web/prometheus.js");
  const text = `# HELP t x
t_bucket{le="1.0",model="a \\\\"b\\\\\\\\"} 10.0
t_bucket{le="2.0",model="a \\\\"b\\\\\\\\"} 20.0
t_bucket{le="+Inf",model="a \\\\"b\\\\\\\\"} 20.0
t_sum{model="a \\\\"b\\\\\\\\"} 25.0
t_count{model="a \\\\"b\\\\\\\\"} 20.0
plain 3.5e+06
`;
  const after = prometheus.parse(text);
  const own = (labels) => labels.model === 'a "b\\\\';
  return [
    prometheus.quantile(0.5, after, undefined, "t", own), prometheus.quantile(0.75, after, undefined, "t", own),
    prometheus.quantile(1, after, undefined, "t", own), prometheus.mean(after, undefined, "t", own),
    prometheus.sum(after, "plain"), prometheus.quantile(0.5, after, after, "t", own) ?? null,
    prometheus.growth({c: [{labels: {}, value: 3}]}, {c: [{labels: {}, value: 10}]}, "c"),
  ];
}"""


@pytest.fixture
def page(browser: "Browser", live: Live) -> Iterator["Page"]:
    with visit(browser, f"{live.url}/status") as opened:
        opened.get_by_role("heading", name="Models").wait_for()
        yield opened


def cells(page: "Page", table: str, row: str) -> list[str]:
    line = (
        page.get_by_role("region", name=table)
        .locator("tbody tr")
        .filter(has=page.locator("th", has_text=row))
    )
    return [text.strip() for text in line.locator("td").all_inner_texts()]


def test_the_models_are_those_that_are_loaded(page: "Page", live: Live) -> None:
    loaded = {model["name"]: model for model in live.get("/models").json["models"]}
    names = page.get_by_role("region", name="Models").locator("tbody th").all_inner_texts()
    assert [name.split()[0] for name in names] == list(loaded)
    row = cells(page, "Models", "names")
    assert row[0] == "ner" and row[1] == loaded["names"]["version"] and row[2] == "fp32"
    assert row[-1] == "ready"


def test_requests_are_counted_while_one_looks(page: "Page", live: Live) -> None:
    def requests() -> str:
        return cells(page, "Traffic by model", "mood")[0]

    eventually(lambda: requests() == "0.0")
    for _ in range(20):
        live.post("/classify", {"text": "a film"})
    eventually(lambda: requests() != "0.0")
    row = cells(page, "Traffic by model", "mood")
    assert float(row[2]) <= float(row[3]) <= float(row[4]), "median, 95% and 99%"
    assert float(row[7]) > 0, "inference"
    assert float(row[9]) == 4, "[CLS] a film [SEP]"
    page.get_by_label("Over").select_option("since the start")
    count = live.settled_metric("bert_request_duration_seconds_count", model="mood")
    assert count >= 20
    # Not the rate: since the start of a service that many tests share, 20 requests may round to 0.0.
    eventually(lambda: float(cells(page, "Traffic by model", "mood")[2]) > 0)


def test_totals_since_the_start_stand_beside_the_last_minute(browser: "Browser", bundles: Path) -> None:
    with serving(bundles=[bundles / "mood", bundles / "names"]) as live:
        for _ in range(12):
            live.post("/classify", {"text": "a film"})
        with visit(browser, f"{live.url}/status") as page:
            page.get_by_role("heading", name="Models").wait_for()
            assert cells(page, "Traffic by model", "mood")[:2] == ["–", "12"], "no second look yet"
            assert "12 since the start" in page.get_by_role("region", name="Requests").inner_text()
            assert "48 since the start" in page.get_by_role("region", name="Tokens").inner_text()
            # The batch that warmed the other model up is no traffic.
            page.get_by_label("Over").select_option("since the start")
            assert set(cells(page, "Traffic by model", "names")[2:-1]) == {"–"}
            page.get_by_text("No request was refused.").wait_for()


def test_a_page_younger_than_its_window_says_how_old_it_is(page: "Page") -> None:
    said = page.get_by_text("since this page was opened")
    said.wait_for()
    eventually(lambda: said.inner_text() in [f"since this page was opened, {i} s" for i in range(1, 60)])
    page.get_by_label("Over").select_option("since the start")
    assert said.count() == 0
    page.get_by_label("Over").select_option("last minute")
    older = "() => { const now = performance.now.bind(performance); performance.now = () => now() + 61000; }"
    page.evaluate(older)  # the next look is a minute later
    said.wait_for(state="detached")


def test_it_can_be_paused(page: "Page") -> None:
    page.get_by_role("button", name="Pause").click()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(3000)
    assert not asked
    page.get_by_role("button", name="Resume").click()

    def has_asked() -> bool:
        page.wait_for_timeout(50)  # lets Playwright hear of requests
        return bool(asked)

    eventually(has_asked)


def test_refusals_and_bundles_that_were_left_out_are_shown(
    browser: "Browser", bundles: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "names"
    broken.mkdir()
    (broken / "bundle.json").write_text((bundles / "names" / "bundle.json").read_text())
    with serving(bundles=[bundles / "mood", broken], max_queue_tokens=512) as live:
        assert live.post("/classify", {"text": ["a film " * 10] * 100}).status == 413
        with visit(browser, f"{live.url}/status") as page:
            page.get_by_role("heading", name="Models").wait_for()
            assert "names (ner) was left out" in page.locator("main").inner_text()
            assert page.locator(".counts").inner_text().split() == ["too", "large", "1"]


def test_the_traffic_is_that_of_models_that_are_served(browser: "Browser", live: Live) -> None:
    live.service.metrics.model_info.labels("gone", "ner", "1", "fp32", "CPU", "false").set(0)
    with visit(browser, f"{live.url}/status") as page:
        names = page.get_by_role("region", name="Traffic by model").locator("tbody th")
        names.filter(has_text="mood").wait_for()
        assert "gone" not in names.all_inner_texts()


def test_a_service_that_ends_is_told(page: "Page") -> None:
    page.route("**/metrics", lambda route: route.abort())
    page.get_by_role("alert").wait_for()
    assert "Trying again" in page.get_by_role("alert").inner_text()
    page.unroute("**/metrics")
    page.get_by_role("alert").wait_for(state="detached")


def test_numbers_are_computed_as_prometheus_does(page: "Page") -> None:
    assert page.evaluate(QUANTILES) == [1, 1.5, 2, 1.25, 3_500_000, None, 3]


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("dark", DESKTOP), ("light", PHONE)], ids=["desktop", "phone"]
)
def test_it_is_readable_and_no_wider_than_the_screen(
    browser: "Browser", live: Live, scheme: str, viewport: dict[str, int]
) -> None:
    with visit(browser, f"{live.url}/status", color_scheme=scheme, viewport=viewport) as page:
        page.get_by_role("heading", name="Models").wait_for()
        page.wait_for_timeout(2500)
        assert not violations(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
