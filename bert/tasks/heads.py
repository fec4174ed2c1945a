"""Where a task's head looks at a text: of all that comes after the last attention, only these tokens are computed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Encoding
from bert.tasks.fill_mask import mask_positions
from bert.tasks.ner import head_positions

Positions = NDArray[np.intp]


def _first_token(_: Encoding) -> Positions:
    return np.zeros(1, np.intp)


def _all_tokens(encoding: Encoding) -> Positions:
    return np.arange(len(encoding))


HEADS: dict[str, Callable[[Encoding], Positions]] = {
    "classification": _first_token,
    "multiple_choice": _first_token,
    "similarity": _first_token,
    "ner": head_positions,
    "qa": _all_tokens,
    "fill_mask": mask_positions,
}
"""Task → the positions (P,) of a text, among its own tokens, where its head is evaluated."""

READ_WORDS = frozenset({"ner", "fill_mask"})
"""Tasks whose positions depend on an encoding's words; for the others its length is enough."""
