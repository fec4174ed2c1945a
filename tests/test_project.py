"""The shape of the project: who imports whom, and that its settings files agree with one another."""

import os
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.settings import ServeSettings
from service.workers.supervisor import END_S
from tests.support.fleet import soon

ROOT = Path(__file__).parents[1]
WALK = """
import importlib, pkgutil, sys
for name in {packages!r}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.startswith({skip!r}):
            importlib.import_module(module.name)
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""


def modules_after_importing(*packages: str, skip: str | tuple[str, ...] = ()) -> set[str]:
    code = WALK.format(packages=packages, skip=skip)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        settings: dict[str, Any] = tomllib.load(stream)["project"]
    return settings


def requirements() -> list[Requirement]:
    extras = project()["optional-dependencies"].values()
    texts = [*project()["dependencies"], *(text for extra in extras for text in extra)]
    return [requirement for text in texts if (requirement := Requirement(text)).name != project()["name"]]


def test_service_imports_no_torch_no_onnx_and_no_other_part() -> None:
    heavy = {"torch", "onnx", "safetensors", "transformers", "peft", "training", "model_export"}
    assert not modules_after_importing("service") & heavy


def test_exporting_imports_no_torch_before_it_verifies() -> None:
    assert not modules_after_importing("model_export") & {"torch", "transformers", "training", "service"}


def test_bert_without_nn_is_numpy_and_tokenizers() -> None:
    heavy = {"torch", "onnx", "onnxruntime", "safetensors", "transformers", "fastapi", "pydantic"}
    # Only those who train, run graphs or read settings import these three.
    assert not modules_after_importing("bert", skip=("bert.nn", "bert.runtime", "bert.settings")) & heavy


def test_training_does_not_import_the_other_parts() -> None:
    assert not modules_after_importing("training") & {
        "service",
        "model_export",
        "onnx",
        "onnxruntime",
        "fastapi",
    }


def test_constraints_satisfy_every_requirement() -> None:
    lines = (ROOT / "requirements/constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    chosen_apart = {"torch", "onnxruntime-gpu"}
    for requirement in requirements():
        if requirement.name not in chosen_apart:
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs/decisions/0001-dependencies.md").read_text()
    missing = [requirement.name for requirement in requirements() if f"`{requirement.name}`" not in reasons]
    assert missing == []


def test_the_readme_names_the_version() -> None:
    assert f"Version {project()['version']} " in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_wheel_has_every_file_of_its_packages_and_its_licenses(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("bert_train_serve-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packages = ["bert", "model_export", "training", "service"]
    wanted = {
        str(file.relative_to(ROOT))
        for package in packages
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == wanted
    licenses = {name.partition("/licenses/")[2] for name in names if ".dist-info/licenses/" in name}
    assert {"LICENSE", "NOTICE", "licenses/training-data.md"} <= licenses


def test_prometheus_scrapes_the_service_of_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert compose["services"][host]["ports"][0].endswith(f":{port}")
    assert "name" not in compose  # compose 1.29 refuses it


def test_the_compose_file_waits_until_the_service_has_ended(tmp_path: Path) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    settings = ServeSettings(bundles=[tmp_path])
    longest_s = settings.drain_s + settings.shutdown_grace_s + END_S
    assert int(compose["services"]["service"]["stop_grace_period"].removesuffix("s")) > longest_s


@pytest.mark.parametrize("script", sorted(path.name for path in ROOT.glob("scripts/*.sh")))
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / script)], check=True)


def refusal(script: str, *arguments: str, **environment: str) -> str:
    command = ["bash", str(ROOT / "scripts" / script), *arguments]
    environment["PATH"] = "/usr/bin:/bin"
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 1
    return run.stderr


def test_a_python_that_does_not_fit_is_refused_with_advice() -> None:
    message = refusal("make_venv.sh", "serve", PYTHON="/bin/false")
    assert "PYTHON=/bin/false is not a Python 3.11" in message
    assert "next: " in message


@pytest.mark.skipif(shutil.which("flock") is None, reason="macOS has no flock")
def test_two_first_starts_at_once_set_up_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("serve.sh", "common.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    played = {
        "scripts/make_venv.sh": "mkdir setting-up; while [ ! -e go ]; do sleep 0.1; done",
        "scripts/make_bundles.sh": "rmdir setting-up",  # fails if two are at it
        ".venv-serve/bin/bert-serve": "",
    }
    for name, line in played.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    command, environment = ["bash", "scripts/serve.sh"], {**os.environ, "PORT": "1"}
    said = tmp_path / "said"
    with said.open("w") as stream:
        starts = [subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=stream) for _ in range(2)]
    soon(lambda: "Waiting for another start" in said.read_text())
    (tmp_path / "go").touch()
    assert [start.wait(120) for start in starts] == [0, 0]


def test_a_port_in_use_is_refused_with_another_to_take() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"make serve PORT={port + 1}" in refusal("serve.sh", PORT=str(port))
