"""Random numbers by place: a draw depends on its example's key and its place alone, not on earlier draws.

So a whole batch is masked at once, and an example gets the same mask in a batch of any size, in any process. The
mixing is SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), whose state after n
steps is key + n * GAMMA.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

ORDER: Final = 0
"""Purpose: the order of candidates."""
ACTION: Final = 1
"""Purpose: [MASK], random or kept."""
PIECE: Final = 2
"""Purpose: the random piece."""
LENGTH: Final = 3
"""Purpose: the number of words of a span."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(keys: Keys, places: NDArray[np.integer], purpose: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), multiples of 2^-32: one for each key (N,) and place (N,), another for each purpose."""
    steps = places.astype(np.uint64) + np.uint64(1 + (purpose << 32))
    state = keys + steps * _GAMMA
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    state ^= state >> np.uint64(31)
    drawn: NDArray[np.float64] = (state >> np.uint64(32)).astype(np.float64) * 2.0**-32
    return drawn
