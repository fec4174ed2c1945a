"""Vectors of labels that were read before, for models whose labels have an encoder of their own."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from bert.names import name_of
from service.engine.models import Floats
from service.settings import LABEL_CACHE_BYTES

ENTRY_BYTES = 500
"""Bytes of an entry beside its vector and its label, about."""

ObserveLabels = Callable[[str, int, int, int], None]
"""Called with a model's name, its labels that were found and that were not, and the bytes of all vectors."""


class LabelVectors:
    """Vectors by model and label, those that were asked for last; for one event loop."""

    def __init__(self, max_bytes: int = LABEL_CACHE_BYTES, observe: ObserveLabels = lambda *_: None) -> None:
        """Keep at most `max_bytes`, labels and what an entry takes beside them included."""
        self._max_bytes, self._observe = max_bytes, observe
        self._vectors: OrderedDict[tuple[str, str], Floats] = OrderedDict()
        self._bytes = 0

    def find(self, model: str, labels: Sequence[str]) -> dict[str, Floats]:
        """Return the vectors (D,) that are known of these labels; `model` is an id, so that a new version has its own."""
        found = dict[str, Floats]()
        for label in labels:
            if (vector := self._vectors.get((model, label))) is not None:
                self._vectors.move_to_end((model, label))
                found[label] = vector
        self._observe(name_of(model), len(found), len(labels) - len(found), self._bytes)
        return found

    def add(self, model: str, found: Iterable[tuple[str, Floats]]) -> None:
        """Keep vectors; those that were not asked for the longest go."""
        for label, vector in found:
            if (model, label) not in self._vectors:  # else another request read it meanwhile
                self._vectors[model, label] = vector
                self._bytes += _size(label, vector)
        while self._bytes > self._max_bytes:
            (_, label), vector = self._vectors.popitem(last=False)
            self._bytes -= _size(label, vector)
        self._observe(name_of(model), 0, 0, self._bytes)


def _size(label: str, vector: Floats) -> int:
    return ENTRY_BYTES + 4 * len(label) + vector.nbytes
