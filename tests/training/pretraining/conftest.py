"""A small corpus to train on, written once."""

from pathlib import Path

import pytest

from tests.support.languages import topics, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus of 40 documents of topics: runs of 60 steps go through it several times."""
    return write_corpus(tmp_path_factory.mktemp("topics") / "corpus", 48, topics(40))
