"""Timing in turns: what else runs on the machine makes a run slower, never faster, and so the best of the rounds counts."""

import time
from collections.abc import Callable, Mapping


def least_seconds(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least seconds of each; they take turns, and the first round warms up."""
    return {name: min(taken) for name, taken in seconds_in_turns(runs, rounds).items()}


def seconds_in_turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round; the runs take turns, and the first round, left out, warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return seconds
