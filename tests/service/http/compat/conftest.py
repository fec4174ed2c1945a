from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.errors import BertError
from bert.tasks.spec import TaskSpec
from service.pipeline.pipeline import BoundedTokenizer
from service.tasks.task import Call
from tests.support.live import Live, serving
from tests.support.tiny import MAX_TOKENS, write_tiny_bundle

KEY = "one-long-key"
CROSS = TaskSpec("classification", ("LABEL_0",), problem_type="regression", pair=True, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a classifier with one label that reads pairs."""
    folder = tmp_path_factory.mktemp("cross") / "cross"
    write_tiny_bundle(folder, "cross", CROSS, 99)
    return folder


@pytest.fixture(scope="module")
def wired(bundles: Path, cross_encoder: Path) -> Iterator[Live]:
    """A service with all wires and the tiny bundles."""
    with serving(bundles=[bundles, cross_encoder], default_models={"classification": "mood"}) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(bundles: Path) -> Iterator[Live]:
    """The same with an API key."""
    with serving(bundles=[bundles], api_key=KEY) as running:
        yield running


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the pipeline raise an error; after `times` requests it works again."""

    def fail(error: BertError, times: int = 1000) -> None:
        left, original = [times], Call.tokenizer

        def tokenizer(self: Call, **options: Any) -> BoundedTokenizer:
            left[0] -= 1
            if left[0] >= 0:
                raise error
            return original(self, **options)

        monkeypatch.setattr(Call, "tokenizer", tokenizer)

    return fail
