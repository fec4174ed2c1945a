"""bert-serve with an engine that crashes on texts of some lengths."""

import sys

from tests.support.crashing_child import RELEASED
from tests.support.fleet import Fleet, soon

COMMAND = [sys.executable, "-m", "tests.support.crashing_child", "--port", "0"]


def text(tokens: int) -> dict[str, str]:
    """Return a request of so many tokens, [CLS] and [SEP] among them."""
    return {"text": " ".join(["film"] * (tokens - 2))}


def release(running: Fleet, *, done: bool = True) -> None:
    """Let slow batches end, or hold them again."""
    file = running.temporary / RELEASED
    file.touch() if done else file.unlink(missing_ok=True)


def in_flight(running: Fleet, count: int) -> None:
    soon(lambda: running.metric("bert_requests_in_flight") == count)
