"""Interface of an engine: a batch of encoded texts in, outputs per text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bert.packing import CostModel
from bert.tokenizer import Encoding

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a batch of N texts."""

    texts: list[Floats]
    """Output of each text: (P, K) at its P head positions, an embedding (1, H), or the best pieces (M, 2, K) of M masks."""
    padding_ratio: float
    """Padding over all computed tokens."""


class Engine(Protocol):
    """A model that runs batches; called from several threads at once."""

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Run the texts together; any exception means that the batch failed."""
        ...


class PackingEngine(Engine, Protocol):
    """An engine that decides by a cost model how it packs a batch."""

    def set_cost(self, cost: CostModel) -> None:
        """Pack by this model from now on."""
        ...
