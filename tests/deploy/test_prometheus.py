"""deploy/prometheus: the rules name metrics that there are, and promtool says what they raise."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from service.metrics import REJECTIONS, Metrics

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"
OPERATIONS = (FOLDER.parents[1] / "docs/operations.md").read_text(encoding="utf-8")
GROUPS = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES = {rule.get("alert") or rule["record"]: rule for group in GROUPS for rule in group["rules"]}
ALERTS = {name: rule for name, rule in RULES.items() if "alert" in rule}
PROMTOOL, AMTOOL = shutil.which("promtool"), shutil.which("amtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_metrics_that_there_are(name: str) -> None:
    assert named_wrongly(RULES[name]["expr"]) == set()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_runbook(name: str) -> None:
    page, _, anchor = ALERTS[name]["annotations"]["runbook_url"].partition("#")
    text = (FOLDER.parents[1] / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert anchor == name.lower()
    assert section.strip().startswith(f"`{ALERTS[name]['labels']['severity']}`. ")
    listed = (FOLDER.parents[1] / "docs/howto/monitor.md").read_text(encoding="utf-8")
    assert f"[{name}](runbooks.md#{anchor}) | {ALERTS[name]['labels']['severity']} |" in listed


def named_wrongly(expression: str) -> set[str]:
    """Return the metrics and reasons of an expression that the service does not have."""
    known = {
        f"{metric.name}{suffix}"
        for metric in Metrics().registry.collect()
        for suffix in ("", "_total", "_count", "_sum", "_bucket")
    } | {*re.findall(r"`(bert_\w+)`", OPERATIONS), *RULES}
    reasons = set(re.findall(r'reason="(\w+)"', expression))
    return (set(re.findall(r"bert[_:][\w:]+", expression)) - known) | (reasons - set(REJECTIONS))


def queries() -> list[str]:
    """Return the queries of the dashboard and those of the page, as Prometheus gets them."""
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    page = (
        (FOLDER.parents[1] / "docs/howto/monitor.md").read_text(encoding="utf-8").partition("## Queries")[2]
    )
    shown += [code for code in re.findall(r"`([^`]+)`", page) if "bert_" in code or "process_" in code]
    return [query.replace("$__rate_interval", "5m").replace("$job", "bert") for query in shown]


def test_dashboard_and_page_ask_for_metrics_that_there_are() -> None:
    assert len(queries()) > 20
    assert [query for query in queries() if named_wrongly(query)] == []


def test_the_dashboard_has_what_grafana_needs() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    assert (board["id"], board["uid"], board["schemaVersion"]) == (None, "bert-serve", 39)
    source = {"type": "prometheus", "uid": "${datasource}"}
    ids, places = [panel["id"] for panel in board["panels"]], set[tuple[int, int]]()
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        places.add((panel["gridPos"]["x"], panel["gridPos"]["y"]))
        if panel["type"] == "row":
            continue
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(each["datasource"] == source for each in (panel, *panel["targets"]))
        for link in panel.get("links", []):
            address, _, anchor = link["url"].partition("#")
            assert address == "${runbooks}" and anchor in {name.lower() for name in ALERTS}
    assert len(places) == len(ids), "no panel lies on another"


def test_the_compose_file_provisions_grafana_and_alertmanager() -> None:
    compose = yaml.safe_load((FOLDER.parents[1] / "docker-compose.yml").read_text(encoding="utf-8"))
    services = compose["services"]
    mounted = [each.split(":")[:2] for service in services.values() for each in service.get("volumes", [])]
    files = {FOLDER.parents[1] / source: target for source, target in mounted if source.startswith("./")}
    assert len(files) == 6 and all(file.is_file() for file in files)
    grafana = FOLDER.parent / "grafana"
    (datasource,) = yaml.safe_load((grafana / "datasources.yml").read_text())["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((grafana / "dashboards.yml").read_text())["providers"]
    assert files[FOLDER / "dashboard.json"].startswith(provider["options"]["path"])
    scraping = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (told,) = scraping["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert told.split(":")[0] in services
    assert all(":" in service["image"] for service in services.values()), "images are pinned"


@pytest.mark.skipif(AMTOOL is None, reason="amtool is not installed: apt-get install prometheus-alertmanager")
def test_amtool_takes_the_configuration_and_routes_pages() -> None:
    assert AMTOOL
    config = f"--config.file={FOLDER / 'alertmanager.yml'}"
    for severity, receiver in (("page", "pages"), ("ticket", "tickets")):
        command = [AMTOOL, "config", "routes", "test", config, f"severity={severity}"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        assert said.stdout.strip() == receiver
    subprocess.run([AMTOOL, "check-config", FOLDER / "alertmanager.yml"], check=True, capture_output=True)


@needs_promtool
def test_promtool_takes_the_queries(tmp_path: Path) -> None:
    assert PROMTOOL
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    subprocess.run([PROMTOOL, "check", "rules", tmp_path / "rules.yml"], check=True, capture_output=True)


@needs_promtool
def test_promtool_takes_configuration_and_rules() -> None:
    assert PROMTOOL
    subprocess.run([PROMTOOL, "check", "config", FOLDER / "prometheus.yml"], check=True, capture_output=True)


@needs_promtool
def test_a_service_that_works_raises_nothing_and_each_fault_its_alert(tmp_path: Path) -> None:
    assert PROMTOOL
    for file in (FOLDER / "alerts.yml", Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(file, tmp_path)
    run = subprocess.run(
        [PROMTOOL, "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    tried = set(re.findall(r'alertname="(\w+)"', (tmp_path / "alerts_test.yml").read_text()))
    assert tried == set(ALERTS), "each is tried"
