"""Requests of every task, and whether two answers are the same."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tiny import WORDS

REQUESTS = 200


def mixed_requests() -> list[tuple[str, dict[str, Any]]]:
    chance = random.Random(7)

    def text(longest: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, longest)))

    makers: list[Callable[[], tuple[str, dict[str, Any]]]] = [
        lambda: ("/classify", {"text": text(25)}),
        lambda: ("/classify", {"text": [text(20) for _ in range(8)], "model": "topics"}),
        lambda: ("/classify", {"text": text(9), "text_pair": [text(9), text(9)], "model": "entailment"}),
        lambda: ("/ner", {"text": text(300)}),
        lambda: ("/similarity", {"text": text(20), "candidates": [text(25) for _ in range(5)]}),
        lambda: ("/qa", {"question": text(8), "context": text(200), "top_k": 2}),
        lambda: ("/embed", {"text": text(25)}),
        lambda: ("/tokenize", {"text": text(25)}),
        lambda: ("/multiple-choice", {"prompt": text(9), "choices": [text(15) for _ in range(4)]}),
        lambda: ("/fill-mask", {"text": [f"{text(9)} [MASK] {text(9)} [MASK]" for _ in range(4)]}),
    ]
    return [chance.choice(makers)() for _ in range(REQUESTS)]


def same(one: Any, other: Any) -> bool:
    """Compare JSON values; numbers to 1e-4."""
    if isinstance(one, float) and isinstance(other, float | int):
        return one == pytest.approx(other, abs=1e-4)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
