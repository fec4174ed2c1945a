"""Scans of what is delivered: secrets in the tree, and vulnerabilities that are known of the versions in the lock."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HASHES = ("Base64HighEntropyString", "HexHighEntropyString")
"""Detectors that take any hash for a secret."""
OLD = "jinja2==2.10"
"""A version with known vulnerabilities: where none is found, there is no data."""


def secrets_in(root: Path, *files: str) -> set[tuple[str, str, int]]:
    """Return the file, kind and line of what looks like a secret below a folder."""
    pytest.importorskip("detect_secrets", reason="detect-secrets comes with make clients")
    scan = [sys.executable, "-m", "detect_secrets", "scan", *files]
    for detector in HASHES:
        scan += ["--disable-plugin", detector]
    results = json.loads(subprocess.check_output(scan, cwd=root))["results"]
    return {(file, each["type"], each["line_number"]) for file, found in results.items() for each in found}


def test_a_secret_is_found(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN RSA " + "PRIVATE KEY-----")
    assert [kind for _, kind, _ in secrets_in(tmp_path, "key.pem")] == ["Private Key"]


def test_no_secret_is_in_the_tree() -> None:
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    assert not {found for found in secrets_in(ROOT, *files) if not is_made_up(*found[:2])}


def is_made_up(file: str, kind: str) -> bool:
    """Tell whether a finding is a password in a test or an example."""
    return kind == "Secret Keyword" and file.startswith(("tests/", "examples/"))


def vulnerable(requirements: Path) -> list[dict[str, Any]]:
    """Return the packages of a file of pinned versions for which vulnerabilities are known."""
    audit = [sys.executable, "-m", "pip_audit", "--format=json", "--no-deps", "--disable-pip"]
    done = subprocess.run([*audit, "-r", str(requirements)], capture_output=True, text=True)
    if not done.stdout:
        pytest.skip(f"pip-audit reached no data: {done.stderr.strip().splitlines()[-1:]}")
    return [package for package in json.loads(done.stdout)["dependencies"] if package.get("vulns")]


def test_no_version_of_the_lock_is_known_to_be_vulnerable(tmp_path: Path) -> None:
    pytest.importorskip("pip_audit", reason="pip-audit comes with make clients")
    (tmp_path / "old.txt").write_text(OLD)
    if not vulnerable(tmp_path / "old.txt"):
        pytest.skip(f"pip-audit finds nothing on {OLD}: PyPI's data on vulnerabilities cannot be reached")
    assert not vulnerable(ROOT / "requirements/constraints.txt")
