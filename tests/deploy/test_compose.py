"""docker-compose.yml: what each profile starts, as docker compose reads it."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMMANDS = (["docker", "compose"], ["docker-compose"])
ALWAYS = {"service", "prometheus"}
PROFILES = {"": ALWAYS, "monitoring": ALWAYS | {"alertmanager", "grafana"}, "gpu": ALWAYS | {"gpu"}}
SERVING = ("service", "gpu")


def compose(*arguments: str) -> str:
    """Return what docker compose says; skip the test where there is none."""
    for command in COMMANDS:
        is_there = shutil.which(command[0]) and not subprocess.call([*command, "version"], **QUIET)
        if is_there:
            done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout
    pytest.skip("docker compose is not installed")


QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def written() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


@pytest.mark.parametrize("profile", PROFILES)
def test_docker_compose_reads_a_profile(profile: str) -> None:
    chosen = ["--profile", profile] if profile else []
    resolved = yaml.safe_load(compose(*chosen, "config"))["services"]
    assert set(resolved) >= PROFILES[profile]  # 1.29 shows those of other profiles too
    ports = [str(port) for each in resolved.values() for port in each["ports"]]
    assert len(ports) == len(set(ports))


def test_each_service_starts_by_default_or_with_one_profile() -> None:
    by_profile = {name: set(service.get("profiles", [])) for name, service in written().items()}
    for profile, names in PROFILES.items():
        assert {name for name, its in by_profile.items() if not its or profile in its} == names


@pytest.mark.parametrize("name", SERVING)
def test_what_serves_is_unprivileged_and_its_image_can_be_built(name: str) -> None:
    service = written()[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and service["mem_limit"]
    build = service["build"] if isinstance(service["build"], dict) else {}
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert build.get("target", "serve") in stages
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert build.get("args", {"EXTRAS": "cpu"})["EXTRAS"] in extras


def test_the_profile_of_a_gpu_asks_for_one() -> None:
    (device,) = written()["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
