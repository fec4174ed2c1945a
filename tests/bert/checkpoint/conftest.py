"""A hub on this machine that has one small checkpoint, and the environment of a program that uses it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import SPECS
from tests.support.families import write_relative
from tests.support.hub_process import hub_variables
from tests.support.local_hub import LocalHub, local_hub

NOT_NEEDED = (
    "modeling.py",
    "pytorch_model.bin",
    "tf_model.h5",
    "onnx/model.onnx",
    "README.md",
    ".gitattributes",
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier, with files beside it that no download needs."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    write_relative(folder, "distilbert", SPECS["classification"])
    for name in NOT_NEEDED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not needed")
    return folder


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[LocalHub]:
    """A hub that has the checkpoint as `org/tiny`."""
    with local_hub() as running:
        running.add("org/tiny", checkpoint)
        yield running


@pytest.fixture
def variables(hub: LocalHub, tmp_path: Path) -> dict[str, str]:
    """The environment of a program that uses the hub with a cache of its own."""
    return hub_variables(hub, tmp_path / "home")
