"""Labels of a request that are part of the model's input: how much of it they may take."""

from collections.abc import Sequence

import numpy as np

from bert.encoding import Ints
from bert.errors import InputError
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer

_TEXT_SHARE = 4
"""Divisor of the model's tokens that gives how many must be left to a text beside its labels."""


def room(before: int, spec: TaskSpec) -> int:
    """Return how many pieces of a text fit beside `before` ids of labels.

    Raises InputError where they are less than a quarter of what the model reads.
    """
    left = spec.max_tokens - 2 - before
    if left < spec.max_tokens // _TEXT_SHARE:
        raise InputError(
            f"take {before} of the {spec.max_tokens} tokens that the model reads, and may take "
            f"{spec.max_tokens - 2 - spec.max_tokens // _TEXT_SHARE}: send fewer or shorter ones"
        )
    return left


def fitting_labels(tokenizer: Tokenizer, labels: Sequence[str], max_tokens: int) -> list[Ints]:
    """Return the ids of the first labels that take at most half of `max_tokens`, each with its marker; one at least."""
    found = [np.array(ids, np.int32) for ids in tokenizer.ids(labels) if ids]
    while len(found) > 1 and 2 * sum(len(label) + 1 for label in found) > max_tokens:
        found.pop()
    return found
