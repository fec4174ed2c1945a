"""Inputs of the checkpoint's linear layers on real texts, to which the 8-bit export fits its scales."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from bert.bodies.body import EMBEDDING
from bert.checkpoint.tensor_names import Weights
from bert.checkpoint.weights import release_pages
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.tasks.spec import TaskSpec
from model_export import progress
from model_export.reference import Floats, Reference

MAX_TOKENS = 2048
"""Tokens whose inputs are kept for each layer: more changed nothing, and BERT large would fill the memory."""
MAX_SHARING = 4
"""Layers with the same weights for which MAX_TOKENS each are kept; where there are more, they share those of so many."""


class Calibration:
    """Inputs of every linear layer by its name in the checkpoint. M tokens, K features.

    The layers are worked out one by one, when the graph's writer comes to them: the inputs of one layer at a time are in
    memory, unless layers share their weights.

    That is done in float64: in float32 the last bits depend on the processor and on its number of threads, and with them
    how some weights round, so that one checkpoint would give another graph on each machine.
    """

    def __init__(
        self, config: BertConfig, spec: TaskSpec, weights: Weights, encodings: Sequence[Encoding]
    ) -> None:
        """Work out nothing yet."""
        layers = len(config.layer_order) // len(set(config.layer_order))
        texts = _first(encodings, MAX_TOKENS * min(layers, MAX_SHARING) // layers)
        self._kept: dict[str, list[Floats]] = {}
        self._last: tuple[Floats, Floats] | None = None
        reference = Reference(config, spec, _Wide(weights), observe=self._observe)
        self._layers = _counted(reference.layers(texts), len(config.layer_order))
        self._shares_layers, self._weights = config.shares_layers, weights

    def inputs(self, name: str) -> Floats:
        """Return the vectors that a layer read, (M, K). Ask for layers in their order."""
        while name not in self._kept:
            if self._shares_layers:
                deque(self._layers, maxlen=0)
                continue
            self._kept.clear()
            next(self._layers)
            release_pages(self._weights)
        return self._kept[name][0] if len(self._kept[name]) == 1 else np.concatenate(self._kept[name])

    def _observe(self, name: str, x: Floats) -> None:
        """Take in what one layer read, (T, K)."""
        if self._last is None or self._last[0] is not x:  # queries, keys and values read the same
            self._last = x, x.astype(np.float32)
        self._kept.setdefault(name, []).append(self._last[1])


def _counted(layers: Iterator[Floats], count: int) -> Iterator[Floats]:
    """Yield the layers, and report each as done when the next one is asked for."""
    for done, layer in enumerate(layers, start=1):
        yield layer
        progress.current.advance(done / count)


class _Wide(Mapping[str, Floats]):
    """Weights in float64, widened when they are read. Of the words' table, which is not, rows are."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Floats:
        weight = self._weights[name]
        return weight if name == EMBEDDING else cast(Floats, weight.astype(np.float64))

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _first(encodings: Sequence[Encoding], tokens: int) -> list[Encoding]:
    """Return the first texts, of so many tokens or a little more."""
    found, total = list[Encoding](), 0
    for encoding in encodings:
        if total >= tokens:
            break
        found.append(encoding)
        total += len(encoding)
    return found
