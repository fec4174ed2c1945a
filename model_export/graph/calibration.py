"""Inputs of the checkpoint's linear layers on real texts, to which the 8-bit export fits its scales."""

from collections.abc import Iterable
from typing import cast

import numpy as np

from bert.bodies.body import EMBEDDING
from bert.checkpoint.tensor_names import Weights
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from model_export.reference import Floats, Reference

MAX_TOKENS = 4096
"""Tokens whose inputs are kept for each layer: more changed nothing, and BERT large would fill the memory."""
MAX_SHARING = 4
"""Layers with the same weights for which MAX_TOKENS each are kept; where there are more, they share those of so many."""


class Calibration:
    """Inputs of every linear layer by its name in the checkpoint. M tokens, K features."""

    def __init__(self, layers_per_weight: int = 1) -> None:
        """Start with nothing seen. Each name is observed in so many layers of a text."""
        self._max_tokens = MAX_TOKENS * min(layers_per_weight, MAX_SHARING)
        self._kept: dict[str, list[Floats]] = {}
        self._tokens: dict[str, int] = {}

    def observe(self, name: str, x: Floats) -> None:
        """Take in what one layer read of one text, (T, K)."""
        room = self._max_tokens - self._tokens.get(name, 0)
        self._kept.setdefault(name, []).append(x[:room].astype(np.float32))
        self._tokens[name] = self._max_tokens - room + min(room, len(x))

    def inputs(self, name: str) -> Floats:
        """Return a bounded number of the vectors that a layer read, (M, K)."""
        return np.concatenate(self._kept[name])


def calibrate(
    config: BertConfig, spec: TaskSpec, weights: Weights, encodings: Iterable[Encoding]
) -> Calibration:
    """Run texts through the reference and watch its linear layers.

    That is done in float64: in float32 the last bits depend on the processor and on its number of threads, and with them
    how some weights round, so that one checkpoint would give another graph on each machine.
    """
    # numpy widens what they are combined with. Rows of the words' table are widened when they are read.
    wide = {name: w if name == EMBEDDING else w.astype(np.float64) for name, w in weights.items()}
    calibration = Calibration(len(config.layer_order) // len(set(config.layer_order)))
    reference = Reference(config, spec, cast(Weights, wide), observe=calibration.observe)
    for encoding in encodings:
        reference.hidden(encoding.ids, encoding.segment_ids)
    return calibration
