"""deploy/kubernetes: what it asks of a cluster fits the service, and the schemas of Kubernetes."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import ServeSettings
from service.workers.supervisor import END_S

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
FILES = sorted(
    file for file in FOLDER.rglob("*.yaml") if file.name not in ("kustomization.yaml", "serve.yaml")
)
NAMES = {"app.kubernetes.io/name": "bert-serve"}


def read(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


(DEPLOYMENT,) = read("base/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


@pytest.fixture(scope="module")
def settings() -> ServeSettings:
    """The settings of the ConfigMap, as the service reads them."""
    return ServeSettings(**yaml.safe_load((FOLDER / "base/serve.yaml").read_text(encoding="utf-8")))


def test_a_pod_is_killed_only_after_the_service_has_ended(settings: ServeSettings) -> None:
    longest_s = settings.drain_s + settings.shutdown_grace_s + END_S
    assert POD["spec"]["terminationGracePeriodSeconds"] > longest_s
    assert settings.drain_s >= CONTAINER["readinessProbe"]["periodSeconds"]


def test_probes_and_scrapes_ask_where_the_service_listens(settings: ServeSettings) -> None:
    assert settings.host == "0.0.0.0"
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": settings.port}]
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(settings.port)
    for probe, path in (
        ("startup", "/health/ready"),
        ("readiness", "/health/ready"),
        ("liveness", "/health/live"),
    ):
        assert CONTAINER[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    start = CONTAINER["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= settings.load_timeout_s


def test_a_pod_has_whole_cores_and_a_read_only_root() -> None:
    assert CONTAINER["resources"]["requests"]["cpu"] == CONTAINER["resources"]["limits"]["cpu"]
    assert int(CONTAINER["resources"]["limits"]["cpu"]) >= 1
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    dockerfile = (FOLDER.parents[1] / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {POD['spec']['securityContext']['runAsUser']}\n" in dockerfile


def test_everything_means_the_same_pods() -> None:
    (service,), (scaler, budget) = read("base/service.yaml"), read("base/scaling.yaml")
    (monitor,) = read("pod-monitor.yaml")
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == POD["metadata"]["labels"] == NAMES
    assert service["spec"]["selector"] == NAMES
    assert budget["spec"]["selector"] == monitor["spec"]["selector"] == {"matchLabels": NAMES}
    assert scaler["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    assert "replicas" not in DEPLOYMENT["spec"], "the autoscaler sets them"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_a_file_fits_the_schemas_of_kubernetes(file: Path) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate comes with make clients"
    )
    for item in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if item["apiVersion"].startswith("monitoring.coreos.com/"):
            pytest.skip("a kind of the Prometheus operator, whose schema is in no package")
        validator.validate(item, validator.latest_version(), strict=True)


@pytest.mark.parametrize("folder", ["base", "own-bundles"])
def test_what_kustomize_writes_fits_the_schemas_too(folder: str) -> None:
    validator = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate comes with make clients"
    )
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(FOLDER / folder)]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    items = {item["kind"]: item for item in yaml.safe_load_all(written)}
    for item in items.values():
        validator.validate(item, validator.latest_version(), strict=True)
    pod = items["Deployment"]["spec"]["template"]["spec"]
    (settings,) = (volume["configMap"] for volume in pod["volumes"] if "configMap" in volume)
    assert settings["name"] == items["ConfigMap"]["metadata"]["name"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == (["bert-bundles"] if folder == "own-bundles" else [])
    assert ("/bundles" in json.dumps(pod["containers"][0]["volumeMounts"])) == bool(claims)
