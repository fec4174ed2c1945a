import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.tasks.spec import TaskSpec
from tests.support.live import Live, serving
from tests.support.tiny import write_tiny_bundle, write_tiny_bundles


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny bundles, one for each kind of task."""
    folder = tmp_path_factory.mktemp("bundles")
    write_tiny_bundles(folder)
    return folder


@pytest.fixture(scope="session")
def long_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle that reads texts of 4,096 tokens: the scores of their attention take hundreds of MiB."""
    folder, spec = (
        tmp_path_factory.mktemp("long"),
        TaskSpec("classification", ("negative", "positive"), max_tokens=4096),
    )
    write_tiny_bundle(folder / "long", "long", spec, seed=0, positions=4096)
    return folder / "long"


@pytest.fixture
def restored() -> Iterator[None]:
    """Put the loggers back as they were."""
    loggers = [logging.getLogger(name) for name in ("bert_serve", "uvicorn")]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.fixture
def short_tmp_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, whatever the test and pytest's worker are called."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="test") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def live(bundles: Path) -> Iterator[Live]:
    """A service with all tiny bundles; "mood" answers /classify by default.

    The bound of the queue is a real model's: tiny ones would get half an hour of a real one's work by default.
    """
    limits: dict[str, Any] = {"max_queue_tokens": 131_072}
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running
