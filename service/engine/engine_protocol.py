"""Interface of an engine: a batch of encoded texts in, outputs per text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bert.tokenizer import Encoding

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a batch gave.

    Per text (P_n, K), (1, H) where the graph embeds, or (M_n, 2, K) where it fills masks: `fill_mask.best_pieces`; and
    the share of places that was padding.
    """

    texts: list[Floats]
    padding_ratio: float


class Engine(Protocol):
    """Whatever runs a batch. Called from several threads at once."""

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Run the texts together; raises EngineError, or anything, if that fails."""
        ...
