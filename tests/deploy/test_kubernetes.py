"""deploy/helm: what the chart asks of a cluster fits the service, and the schemas of Kubernetes."""

import json
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import ServeSettings
from service.workers.supervisor import END_S

DEPLOY = Path(__file__).parents[2] / "deploy"
GOT = DEPLOY.parent / ".tools/helm"
HELM = shutil.which("helm") or (str(GOT) if GOT.exists() else None)
PROMTOOL = shutil.which("promtool")
needs_helm = pytest.mark.skipif(HELM is None, reason="Helm is not installed: scripts/get_helm.sh gets it")
OPERATORS = 'networkPolicy.operators=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]'
KEYS = ("keys.secret=bert", "keys.fileSecret=bert-keys")
MONITORED = ("monitoring.operator=true", "monitoring.dashboard=true", "monitoring.labels.release=prometheus")
BUCKET = ("settings.bundles=s3://models/prod", "settings.model_cache=/tmp/models")
VARIANTS = {
    "default": (),
    "keys": (*KEYS, "host='::'", "bundlesClaim=bert-bundles", "settings.watch_bundles_s=5"),
    "monitored": (*MONITORED, "adminPort=9000", OPERATORS, "settings.drain_s=20.5"),
    "bucket": (
        *BUCKET,
        "networkPolicy.egress=[{ports: [{port: 443}]}]",
        "envSecret=bucket",
        "serviceAccount=reader",
    ),
    "tokens": ("scaling.queueTokens=20000", "gpus=1", "nodeSelector.gpu='yes'"),
    "keda": ("scaling.by=keda", "scaling.queueTokens=1000000", "networkPolicy.enabled=false"),
    "fixed": ("scaling.by=none", "scaling.min=3", "settings.load_timeout_s=61"),
}
OURS = ("monitoring.coreos.com/v1", "keda.sh/v1alpha1")
"""Groups of operators, whose schemas no package has."""


def helm(*arguments: str, values: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """Run Helm over the chart with values, each written PATH=YAML."""
    assert HELM
    written: dict[str, Any] = {}
    for path, _, value in (each.partition("=") for each in values):
        *outer, name = path.split(".")
        inner = written
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[name] = yaml.safe_load(value)
    command = [HELM, *arguments, str(DEPLOY / "helm"), "--values=-"]
    return subprocess.run(command, input=yaml.safe_dump(written), capture_output=True, text=True)


def rendered(*values: str) -> dict[str, dict[str, Any]]:
    """Return the chart's objects by their kinds; the dashboard is a kind of its own."""
    done = helm("template", "--namespace=models", "two", values=values)
    assert done.returncode == 0, done.stderr
    items = [item for item in yaml.safe_load_all(done.stdout) if item]
    names = [
        "Dashboard" if item["metadata"]["name"].endswith("-dashboard") else item["kind"] for item in items
    ]
    assert len(set(names)) == len(names)
    return dict(zip(names, items, strict=True))


def pod_of(items: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specification of the pods, and of their container."""
    pod = items["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@needs_helm
@pytest.mark.parametrize(("values", "may_lack"), [(KEYS[:1], False), (KEYS, True)])
def test_pods_do_not_start_without_the_key_that_was_meant(values: Sequence[str], may_lack: bool) -> None:
    _, container = pod_of(rendered(*values))
    keys = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
    assert keys["BERT_SERVE_API_KEY"] == {"name": "bert", "key": "api-key", "optional": may_lack}
    assert keys["BERT_SERVE_ADMIN_API_KEY"]["optional"]


def settings_of(items: dict[str, dict[str, Any]]) -> ServeSettings:
    """Return the settings of the ConfigMap, as the service reads them."""
    return ServeSettings(**yaml.safe_load(items["ConfigMap"]["data"]["serve.yaml"]))


@needs_helm
def test_the_chart_has_no_faults() -> None:
    done = helm("lint", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_a_pod_is_as_the_service_needs_it(values: tuple[str, ...]) -> None:
    items = rendered(*values)
    settings, (pod, container) = settings_of(items), pod_of(items)
    assert pod["terminationGracePeriodSeconds"] > settings.drain_s + settings.shutdown_grace_s + END_S
    assert settings.drain_s >= container["readinessProbe"]["periodSeconds"]
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= settings.load_timeout_s
    for probe, path in (("startup", "ready"), ("readiness", "ready"), ("liveness", "live")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": f"/health/{path}", "port": "http"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (ports["http"], ports.get("admin")) == (settings.port, settings.admin_port)
    assert container["resources"]["requests"]["cpu"] == container["resources"]["limits"]["cpu"] == "2"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {pod['securityContext']['runAsUser']}\n" in dockerfile
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    assert str(settings.api_keys_file) == f"{mounted['keys']}/keys.yaml" if "keys" in mounted else True
    assert mounted.get("bundles", "/bundles") == str(settings.bundles[0]) or "envFrom" in container


@needs_helm
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_everything_means_the_same_pods(values: tuple[str, ...]) -> None:
    items = rendered(*values)
    deployment = items["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    chosen = {"matchLabels": labels}
    assert deployment["spec"]["selector"] == items["PodDisruptionBudget"]["spec"]["selector"] == chosen
    assert items["Service"]["spec"]["selector"] == labels
    for kind, key in (("PodMonitor", "selector"), ("NetworkPolicy", "podSelector")):
        assert kind not in items or items[kind]["spec"][key] == chosen
    scalers = [items[kind] for kind in ("HorizontalPodAutoscaler", "ScaledObject") if kind in items]
    assert len(scalers) == ("replicas" not in deployment["spec"]), "one of them sets the number of pods"
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@needs_helm
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_objects_fit_the_schemas_of_kubernetes(values: tuple[str, ...]) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate comes with make clients"
    )
    for item in rendered(*values).values():
        if item["apiVersion"] not in OURS:
            validator.validate(item, validator.latest_version(), strict=True)


@needs_helm
def test_rules_and_dashboard_are_those_of_the_files() -> None:
    items = rendered(*VARIANTS["monitored"])
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))
    assert items["PrometheusRule"]["spec"] == rules
    assert items["PrometheusRule"]["metadata"]["labels"] == {"release": "prometheus"}
    dashboard = json.loads((DEPLOY / "prometheus/dashboard.json").read_text(encoding="utf-8"))
    assert json.loads(items["Dashboard"]["data"]["bert-serve.json"]) == dashboard
    assert items["Dashboard"]["metadata"]["labels"] == {"grafana_dashboard": "1"}
    monitor = items["PodMonitor"]["spec"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "admin", "/metrics is not on the public port"
    labels = items["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels[monitor["jobLabel"]] == "bert-serve", "the job of alerts and dashboard"


def test_the_chart_has_the_version_of_the_product() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


@needs_helm
def test_a_changed_setting_rolls_the_pods() -> None:
    def stamp(*values: str) -> str:
        return str(rendered(*values)["Deployment"]["spec"]["template"]["metadata"]["annotations"])

    assert stamp() == stamp("memory.limit=3Gi") != stamp("settings.access_log=true")


REFUSED: dict[str | tuple[str, ...], str] = {
    "scaling.by=vpa": "at '/scaling/by': value must be one of 'hpa', 'keda', 'none'",
    "settings.drain_s=soon": "at '/settings/drain_s': got string, want number",
    "settings.drain_s=1": "at '/settings/drain_s': minimum: got 1, want 5",
    "settings.shutdown_grace_s=null": "missing property 'shutdown_grace_s'",
    "memory.limit=2GB": "at '/memory/limit': '2GB' does not match pattern",
    "cpus=1.5": "at '/cpus': got number, want integer",
    "replicas=3": "additional properties 'replicas' not allowed",
    "settings.port=80": "settings.port: not here; see the values host, adminPort and keys",
    "scaling.min=11": "scaling.min (11) is over scaling.max (10)",
    "scaling.by=keda": "scaling.by keda needs scaling.queueTokens",
    "adminPort=9000": "adminPort needs networkPolicy.operators",
    "memory.request=3Gi": "memory.request (3Gi) is over memory.limit (2Gi)",
    "memory.limit=1000Mi": "memory.request (1Gi) is over memory.limit (1000Mi)",
    "settings.bundles=s3://models/prod": "settings.bundles has a URL and needs settings.model_cache",
    BUCKET: "settings.bundles has a URL and needs networkPolicy.egress",
    (
        "bundlesClaim=mine",
        "settings.bundles=/srv",
    ): "bundlesClaim is at /bundles, which settings.bundles (/srv)",
}


@needs_helm
@pytest.mark.parametrize(("values", "said"), REFUSED.items(), ids=map(str, REFUSED))
def test_a_wrong_value_is_refused_with_its_rule(values: str | tuple[str, ...], said: str) -> None:
    done = helm("template", "two", values=[values] if isinstance(values, str) else values)
    assert done.returncode != 0
    assert said in done.stderr


def adapter_query() -> str:
    """Return the query of the metric that the autoscaler asks for, as the adapter sends it."""
    (rule,) = yaml.safe_load((DEPLOY / "prometheus/adapter.yml").read_text(encoding="utf-8"))["rules"][
        "custom"
    ]
    query: str = rule["metricsQuery"]
    return query.replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'namespace="models"')


@needs_helm
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_pods_are_scaled_by_all_tokens_that_wait(tmp_path: Path) -> None:
    assert PROMTOOL
    trigger = rendered(*VARIANTS["keda"])["ScaledObject"]["spec"]["triggers"][1]["metadata"]
    assert trigger["threshold"] == "1000000"
    scaler = rendered(*VARIANTS["tokens"])["HorizontalPodAutoscaler"]["spec"]
    rules = yaml.safe_load((DEPLOY / "prometheus/adapter.yml").read_text(encoding="utf-8"))["rules"]
    assert scaler["metrics"][1]["pods"]["metric"]["name"] == rules["custom"][0]["name"]["as"]
    waiting = {
        'bert_queue_tokens{namespace="models", pod="two-bert-serve-a", model="ner"}': 100,
        'bert_queue_tokens{namespace="models", pod="two-bert-serve-a", model="mood"}': 20,
        'bert_engine_away_tokens{namespace="models", pod="two-bert-serve-b"}': 3,
        'bert_queue_tokens{namespace="others", pod="two-bert-serve-a", model="ner"}': 7000,
    }
    expected = [
        (adapter_query(), {'{pod="two-bert-serve-a"}': 120, '{pod="two-bert-serve-b"}': 3}),
        (trigger["query"], {"{}": 123}),
    ]
    test = {
        "input_series": [{"series": name, "values": str(tokens)} for name, tokens in waiting.items()],
        "promql_expr_test": [
            {"expr": query, "exp_samples": [{"labels": k, "value": v} for k, v in samples.items()]}
            for query, samples in expected
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
