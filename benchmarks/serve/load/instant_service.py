"""bert-serve with an engine that answers at once: what is left is what the service itself costs.

    PYTHONPATH=. python -P benchmarks/serve/load/instant_service.py --bundles bundles --port 8000

Takes the settings of bert-serve, and is one process unless they say otherwise. PYTHONPATH says which checkout's code is
served. With PROFILE=FILE in the environment it writes there, when it ends, what the functions on the event loop's thread
took.
"""

import cProfile
import os
import pstats
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bert.bundle import Bundle
from bert.tasks.registry import TASKS
from bert.tokenizer import Encoding
from service import cli
from service.engine import bundle_loader
from service.engine.onnx_engine import Outputs  # type: ignore[attr-defined]  # in every checkout
from service.workers import supervisor

LONGEST_TEXT = 512
NO_ENTITY = 2.5
"""Added to the logit of "O": most words are in no entity."""
PROFILED = 80
"""Functions that a profile names."""


class InstantEngine:
    """Answers each text with the same random logits, in the form of its bundle's graph."""

    provider = "CPUExecutionProvider"

    def __init__(self, bundle: Bundle, threads: int, **_: bool) -> None:
        """Opens no graph, and needs no thread."""
        task = bundle.manifest.task
        width = {"qa": 2, "similarity": bundle.manifest.hidden_size}.get(task.task, len(task.labels))
        self._task = TASKS[task.task]
        self._logits = np.random.default_rng(0).normal(size=(LONGEST_TEXT, width)).astype(np.float32)
        if task.task == "ner":
            self._logits[:, 0] += NO_ENTITY

    def run(self, encodings: Sequence[Encoding]) -> Outputs:
        """Answer."""
        return Outputs(
            [self._logits[: len(self._task.head_positions(encoding))] for encoding in encodings], 0.0
        )

    def set_cost(self, _: object) -> None:
        """No-op: it packs nothing."""


def put_in() -> None:
    """Put the instant engine in the place of the real one, in this process and in those that it starts."""
    bundle_loader.OnnxEngine = InstantEngine  # type: ignore[assignment, attr-defined]
    bundle_loader.check = lambda *_: None  # its answers are not the bundle's
    sys.path.append(str(Path(__file__).parent))
    supervisor.Supervisor = partial(supervisor.Supervisor, entry="instant_child")  # type: ignore[assignment, misc]


def main() -> int:
    """Serve."""
    os.environ.setdefault("BERT_SERVE_FRONTENDS", "0")  # an older service warns of the name
    put_in()
    file = os.environ.pop("PROFILE", "")
    if not file:
        return cli.main()
    profiler = cProfile.Profile()
    code: int = profiler.runcall(cli.main)
    with open(file, "w", encoding="utf-8") as stream:
        pstats.Stats(profiler, stream=stream).sort_stats("tottime").print_stats(PROFILED)
    return code


if __name__ == "__main__":
    sys.exit(main())
