"""The cache of labels' vectors: its bound in bytes, and what goes first."""

import numpy as np
import pytest

from service.engine.models import Floats
from service.pipeline.label_vectors import ENTRY_BYTES, LabelVectors

ENTRY = ENTRY_BYTES + 4 + 40


def vector(value: float) -> Floats:
    return np.full(10, value, np.float32)


def test_those_asked_for_last_are_kept() -> None:
    seen = list[tuple[str, int, int, int]]()
    cache = LabelVectors(3 * ENTRY, lambda *counts: seen.append(counts))
    cache.add("m@1", [(label, vector(n)) for n, label in enumerate("abc")])
    assert set(cache.find("m@1", ["a", "x"])) == {"a"}
    cache.add("m@1", [("d", vector(3))])
    assert set(cache.find("m@1", list("abcd"))) == {"a", "c", "d"}
    assert seen == [
        ("m", 0, 0, 3 * ENTRY),
        ("m", 1, 1, 3 * ENTRY),
        ("m", 0, 0, 3 * ENTRY),
        ("m", 3, 1, 3 * ENTRY),
    ]


def test_a_version_has_its_own_and_a_label_is_kept_once() -> None:
    cache = LabelVectors(10 * ENTRY)
    cache.add("m@1", [("a", vector(1)), ("a", vector(1))])
    assert not cache.find("m@2", ["a"])
    assert cache.find("m@1", ["a"])["a"][0] == 1


@pytest.mark.parametrize("limit", [0, ENTRY - 1])
def test_what_is_over_the_bound_is_not_kept(limit: int) -> None:
    cache = LabelVectors(limit)
    cache.add("m@1", [("a", vector(1))])
    assert not cache.find("m@1", ["a"])
