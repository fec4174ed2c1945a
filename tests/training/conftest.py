from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"
Write = Callable[[str, str], Path]


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; a test that wants it is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip("no folder shared/data beside the checkout: this test reads real data")
    return SHARED


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small file; returns its path."""

    def write_file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode())  # bytes: no line end is changed on the way
        return path

    return write_file
