"""The Python that docs/client.md and both READMEs show, run against a service."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import FENCED, ROOT
from tests.support.live import Live, serving

PAGES = ("README.md", "docs/client.md", "client/README.md")
BLOCKS = [
    found[2] for page in PAGES for found in FENCED.finditer((ROOT / page).read_text()) if found[1] == "python"
]


@pytest.fixture(scope="module")
def live(bundles: Path) -> Iterator[Live]:
    """A service with the default limits."""
    with serving(bundles=[bundles], default_models={"classification": "mood"}) as running:
        yield running


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: re.sub(r"\W+", " ", code)[-40:])
def test_the_code_runs_and_prints(live: Live, code: str) -> None:
    code = code.replace("http://localhost:8000", live.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "client")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= code.count("print(")
