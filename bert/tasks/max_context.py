"""Choice of the window that speaks for a piece, of several over one text: the one that shows most of its surroundings.

The rule is google-research/bert's (`_check_is_max_context`): the smaller of the number of pieces to the left
and to the right inside the window, plus a hundredth of the window's length; the first window wins a tie.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bert.encoding import Window


def context(window: Window) -> NDArray[np.float64]:
    """Return how much context the window gives to each of its pieces, (stop - start,)."""
    pieces = window.stop - window.start
    to_the_left = np.arange(pieces)
    return np.minimum(to_the_left, to_the_left[::-1]) + 0.01 * pieces


def first_token(window: Window) -> int:
    """Return the index in the window's encoding of its first piece; its last token is the closing [SEP]."""
    return len(window.encoding) - 1 - (window.stop - window.start)


def owned_pieces(windows: Sequence[Window]) -> list[NDArray[np.bool_]]:
    """Return for each window which of its pieces, (stop - start,), have the most context in it."""
    if len(windows) == 1:
        return [np.ones(windows[0].stop - windows[0].start, np.bool_)]
    pieces = max((window.stop for window in windows), default=0)
    most, owner = np.full(pieces, -1.0), np.full(pieces, -1)
    for index, window in enumerate(windows):
        span, here = slice(window.start, window.stop), context(window)
        better = here > most[span]
        most[span][better] = here[better]
        owner[span][better] = index
    return [owner[window.start : window.stop] == index for index, window in enumerate(windows)]
