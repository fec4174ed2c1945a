"""Is a core for each engine slot the best division here? Measured by `bert-serve --tune`: all slots busy, in each way."""

import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from bert.bundle import Bundle
from bert.tokenizer import Encoding
from service.autotune.cost_curve import Plan
from service.engine.onnx_engine import Engine, OnnxEngine

ROUND_S, ROUNDS = 0.4, 3
CLEARLY = 1.1
"""Times the throughput of the division that is used, from which another is worth a setting."""


def divisions(cores: int) -> list[Plan]:
    """Return the ways to give each slot as many threads as the others, and no core to two."""
    return [Plan(cores // threads, threads) for threads in range(1, cores + 1) if cores % threads == 0]


def throughputs(bundle: Bundle, plans: Sequence[Plan], texts: Sequence[Encoding]) -> list[float]:
    """Return the tokens a second of each plan with all its slots busy with such batches.

    One plan after the other: each has the weights in memory once more.
    """
    found = []
    for plan in plans:
        engine = OnnxEngine(bundle, plan.threads)  # its threads sleep while they wait, as in the service
        rates = [tokens_per_s(engine, plan.slots, texts, ROUND_S) for _ in range(ROUNDS)]
        found.append(statistics.median(rates))
    return found


def tokens_per_s(engine: Engine, slots: int, texts: Sequence[Encoding], seconds: float) -> float:
    """Return the tokens a second of so many threads that give an engine one batch after the other."""
    engine.run(texts)
    started = time.perf_counter()
    finished: list[float] = []

    def loop() -> None:
        with suppress(Exception):  # what it could not do does not count
            while time.perf_counter() - started < seconds:
                engine.run(texts)
                finished.append(time.perf_counter())

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(slots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = max(finished, default=started + seconds) - started
    return len(finished) * sum(map(len, texts)) / took


def lines(plan: Plan, plans: Sequence[Plan], rates: Sequence[float], tokens: int) -> list[str]:
    """Return what is printed of it: the figures, and the settings to give where another division is clearly faster."""
    figures = ", ".join(
        f"{each.slots} x {each.threads} {rate:,.0f}" for each, rate in zip(plans, rates, strict=True)
    )
    said = [f"  slots x threads, all busy with batches of {tokens} tokens, tokens/s: {figures}"]
    best_rate, best = max(zip(rates, plans, strict=True), key=lambda pair: pair[0])
    used = next((rate for rate, each in zip(rates, plans, strict=True) if each == plan), None)
    if used is not None and best_rate > CLEARLY * used:
        said.append(
            f"  faster here: --engine-slots {best.slots} --engine-threads-per-slot {best.threads} "
            f"({best_rate / used:.2f} times)"
        )
    return said
