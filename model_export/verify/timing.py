"""How long graphs take on this machine, side by side."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from bert.encoding import Encoding
from model_export.verify.precision import Exporter
from model_export.verify.session import GraphSession
from model_export.verify.texts import Text, make_text

SHAPES = ((1, 32), (8, 64))
"""Texts and the tokens of each: a request alone, and a batch under load."""
SECONDS = 0.8
"""Seconds for each shape and all graphs together, unless ROUNDS[0] rounds take longer."""
ROUNDS = (3, 40)  # at least, at most
THREADS = (
    1  # two threads on a shared machine wait for one another, and the service's default is a core an engine
)

Milliseconds = dict[str, float]
"""Batch, such as "8 x 64" → the time that it takes."""
Times = dict[str, Milliseconds]
"""Precision → its times."""


def time_graphs(graphs: Mapping[str, Exporter], texts: Sequence[Text], task: str) -> Times:
    """Return each graph's milliseconds for each of SHAPES, of one thread."""
    runners = {name: GraphSession(graph.model, graph.packer, THREADS) for name, graph in graphs.items()}
    found: Times = {name: {} for name in graphs}
    longest = max(map(len, texts))  # what a model of few positions still reads
    for count, tokens in SHAPES:
        text = _text_of(texts, min(tokens, longest), task)
        runs = [partial(runner.run, [text] * count) for runner in runners.values()]
        for name, best in zip(graphs, best_milliseconds(runs), strict=True):
            found[name][f"{count} x {tokens}"] = round(best, 3)
    return found


def best_milliseconds(
    runs: Sequence[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the best time of each of `runs`.

    They take turns, so that a busy moment slows all of them; and what a busy machine adds is not in the best.
    """
    for run in runs:  # the first time memory is fetched
        run()
    times: list[list[float]] = [[] for _ in runs]
    begin, (fewest, most) = clock(), ROUNDS
    while len(times[0]) < fewest or (len(times[0]) < most and clock() - begin < SECONDS):
        for run, taken in zip(runs, times, strict=True):
            start = clock()
            run()
            taken.append(clock() - start)
    return [min(taken) * 1000 for taken in times]


def speedup(slow: Milliseconds, fast: Milliseconds) -> float:
    """Return how many times as fast one graph is as the other: the geometric mean over the batches."""
    return float(np.exp(np.mean([np.log(slow[batch] / fast[batch]) for batch in slow])))


def _text_of(texts: Sequence[Text], tokens: int, task: str) -> Text:
    """Return a text of so many tokens, made of real ones; each a word of its own."""
    ids = np.resize(np.concatenate([text.encoding.ids for text in texts]), tokens)
    zeros, words = np.zeros(tokens, np.int32), np.arange(tokens, dtype=np.int32)
    text = make_text(Encoding(ids, zeros, np.zeros((tokens, 2), np.int32), words, zeros), task)
    # Masks are not words, so none are found: one is enough here.
    return text if len(text.positions) else Text(text.encoding, np.zeros(1, np.intp))
