"""An engine that waits for the test: put in place of a model's, it holds its batches until the gate opens."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bert.tokenizer import Encoding
from service.engine.models import Engine, Outputs
from tests.support.live import Live


@dataclass
class GatedEngine:
    inner: Engine
    gate: threading.Event = field(default_factory=threading.Event)
    batches: int = 0
    tokens: list[int] = field(default_factory=list)
    """Tokens of each text, in the order in which they came."""
    error: Exception | None = None

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        self.batches += 1
        self.tokens += [len(each.ids) for each in encodings]
        assert self.gate.wait(120)
        if self.error is not None:
            raise self.error
        return self.inner.run(encodings)


@contextmanager
def gated(live: Live, model: str) -> Iterator[GatedEngine]:
    """Put a closed gate before a model's engine; it opens at the block's end at the latest."""
    engines, model = live.scheduler._engines, live.loaded.registry.models[model].id
    assert isinstance(engines, dict)
    engine = engines[model] = GatedEngine(engines[model])
    try:
        yield engine
    finally:
        engine.gate.set()
        engines[model] = engine.inner
