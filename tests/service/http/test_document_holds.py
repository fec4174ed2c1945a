"""The OpenAPI document holds: schemathesis sends what it allows and what it forbids, with a fixed seed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.http import authorise
from tests.support.live import Live, serving
from tests.support.tiny import SPECS, write_tiny_bundle

CONFIG = Path(__file__).with_name("schemathesis.toml")
KEY = "correct-horse"
NAMES = {
    "sentiment": "mood",
    "ner": "names",
    "qa": "reader",
    "similarity": "meaning",
    "gaps": "gaps",
    "stories": "stories",
}
"""Names in the document's examples → tiny models."""


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("documented")
    for seed, (name, spec) in enumerate(NAMES.items()):
        write_tiny_bundle(folder / name, name, SPECS[spec], seed)
    with pytest.MonkeyPatch.context() as patch, serving(bundles=[folder], api_key=KEY) as live:
        patch.setattr(authorise, "WRONG_KEYS", 10**6)  # it sends one to each path, and expects a 401
        yield live


@pytest.mark.slow
def test_what_the_document_promises_is_answered_and_what_it_forbids_is_refused(
    documented: Live, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install -e '.[dev]'")
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(CONFIG), "run"]
    found = subprocess.run(
        [
            *command,
            f"{documented.url}/openapi.json",
            "-H",
            f"Authorization: Bearer {KEY}",
            "--continue-on-failure",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,  # it leaves a folder there
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Tested: 56" in found.stdout, found.stdout
