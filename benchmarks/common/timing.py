"""Timing in turns: what else runs on the machine makes a run slower, never faster, and so the best of the rounds counts."""

import time
from collections.abc import Callable, Mapping


def least_seconds(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least seconds of each; they take turns, and the first round warms up."""
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                best[name] = min(best[name], time.perf_counter() - started)
    return best
