"""deploy/prometheus: the rules name metrics that there are, and promtool says what they raise."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from service.metrics import REJECTIONS, Metrics

FOLDER = Path(__file__).parents[2] / "deploy/prometheus"
OPERATIONS = (FOLDER.parents[1] / "docs/operations.md").read_text(encoding="utf-8")
(GROUP,) = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)


@pytest.mark.parametrize("name", RULES)
def test_an_alert_names_metrics_that_there_are(name: str) -> None:
    known = {
        f"{metric.name}{suffix}"
        for metric in Metrics().registry.collect()
        for suffix in ("", "_total", "_count")
    } | set(re.findall(r"`(bert_\w+)`", OPERATIONS))
    expression = RULES[name]["expr"]
    assert set(re.findall(r"bert_\w+", expression)) <= known
    assert set(re.findall(r'reason="(\w+)"', expression)) <= set(REJECTIONS)


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
    assert set(RULES) <= set(re.findall(r"Bert\w+", (tmp_path / "alerts_test.yml").read_text())), (
        "each is tried"
    )
