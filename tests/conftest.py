"""What holds for all tests."""

import logging
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from service.system import usable_cores
from tests.support.environment import set_environment
from tests.support.files import Write

# A time limit on an example fails on a busy machine.
settings.register_profile("unhurried", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.register_profile(
    "hunt", settings.get_profile("unhurried"), max_examples=int(os.environ.get("HUNT_EXAMPLES", "100_000"))
)
settings.load_profile("unhurried")

set_environment(with_home="PYTEST_XDIST_WORKER" not in os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Count the workers of `-n auto`: one more than the cores that this process may use.

    Many tests wait for processes that they started, signals or deadlines. The others use the cores meanwhile.
    """
    return usable_cores() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the workers the files with slow tests first: one that starts last would keep a worker busy beside idle ones."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_teardown() -> None:
    """Take back what a command that ran in the test's own process set for all of it: torch's threads, the log's handlers.

    Such a handler writes to the captured standard error of its test, which is closed for the next.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    for name in ("bert_serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs keep no compiled modules: under a limit on files CPython 3.11 keeps half of one, for all later runs."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder of the whole session: all workers have the same. Lock what you make in it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; a test that wants it is skipped where there is none."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder shared/data beside the checkout: this test reads real data")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small file; returns its path."""

    def write_file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode())  # bytes: no line end is changed on the way
        return path

    return write_file
