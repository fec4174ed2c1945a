"""An engine's time by batch size: how it is measured, what is fitted to it, and the batch sizes that follow.

Throughput rises with the tokens of a batch until the cores are used well, then stays level. Past that knee a larger
batch only makes every text in it wait longer, so the token budget of a batch is the knee.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bert.packing import DEFAULT_COST, TEXT_TOKENS, CostModel
from bert.tokenizer import Encoding
from service.engine.models import Engine
from service.engine.sample_texts import sample_text, sample_texts

Clock = Callable[[], float]

MIN_BUDGET = 64
"""Minimum budget in tokens: a disturbed measurement must not make batches of single words."""
KNEE = 0.9
"""Share of the best throughput that defines the budget."""
FULL = 0.98
"""Share of the best throughput that defines a large batch, used under load."""
MIN_ATTENTION_WIDTH, MAX_ATTENTION_WIDTH, MAX_RUN_TOKENS = 50.0, 20_000.0, 100.0
"""Bounds of a fitted cost model, in tokens: a disturbed measurement must not give an absurd one."""
BATCH_REPEATS = 2
TEXT_REPEATS = 4
WIDE_SIZES = (512, 256, 128)
"""Tokens of the text that shows what attention costs in a wide row; the first that can be timed within the budget."""
TEXT_SIZES = (16, 32, 64, 128, 256, 512)
"""Tokens of the single texts that are timed."""
WORTHWHILE = 0.85
"""Maximum share of the time on one slot at which a text may take several, which other requests then lack."""
MIN_CORE_SHARE = 0.9
"""Minimum share of its cores that a run must get for its timing to count."""
MIN_TIMED_S = 1e-3
"""Minimum duration of a run whose share of the cores counts: a shorter one ends before all threads are awake."""
RETRY_FOR_S = 3.0
"""Total seconds spent on waiting for free cores."""
RETRY_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class CostPoint:
    """Time of one batch size."""

    tokens: int
    seconds: float
    """Best time of several runs."""
    wall_s: float = 0.0
    """Mean wall time, other programs' work included; 0 if not measured."""

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Measurement:
    """A model's measured speed."""

    curve: tuple[CostPoint, ...]
    """Batch times on one slot."""
    multi_slot_tokens: int | None = None
    """Length from which a text alone in the engine is faster on several slots; None if never."""
    cost: CostModel | None = None
    """Fitted to the model; None on a GPU, and where a long text would take too much time."""


def knee(curve: Sequence[CostPoint], share: float = KNEE) -> int:
    """Return the size in tokens of the smallest batch with this share of the best throughput, at least MIN_BUDGET."""
    best = max(point.tokens_per_s for point in curve)
    return max(MIN_BUDGET, min(point.tokens for point in curve if point.tokens_per_s >= share * best))


def fit_cost(
    curve: Sequence[CostPoint], text_tokens: int, wide: CostPoint, guess: CostModel = DEFAULT_COST
) -> CostModel | None:
    """Fit seconds = run + tokens * token + tokens * attended width * attention, by least squares of the relative errors.

    `curve` was measured in rows of `text_tokens`, `wide` with one text; `guess` knows which layers see a window.
    Returns None if the fit gives a token or attention no cost.
    """
    shapes = [(point.tokens, min(point.tokens, text_tokens)) for point in curve] + [
        (wide.tokens, wide.tokens)
    ]
    seconds = np.array([point.seconds for point in [*curve, wide]])
    terms = np.array([[1, tokens, tokens * guess.attended(width)] for tokens, width in shapes])
    terms /= seconds[:, None]
    run, token, attention = np.linalg.lstsq(terms, np.ones(len(seconds)))[0]
    if token <= 0 or attention <= 0:
        return None
    return fitted(guess, token / attention, run / token)


def fitted(guess: CostModel, attention_width: float, run_tokens: float) -> CostModel:
    """Return a guess with measured values, clamped to the bounds. Raises ValueError for NaN."""
    if math.isnan(attention_width) or math.isnan(run_tokens):
        raise ValueError("a cost model cannot hold NaN")
    return replace(
        guess,
        attention_width=min(max(float(attention_width), MIN_ATTENTION_WIDTH), MAX_ATTENTION_WIDTH),
        run_tokens=min(max(float(run_tokens), 0.0), MAX_RUN_TOKENS),
    )


def time_batches(
    engine: Engine,
    max_tokens: int,
    *,
    text_tokens: int = TEXT_TOKENS,
    budget_s: float = 0.5,
    warm_up: bool = False,
    clock: Clock = time.perf_counter,
    wall: Clock = time.perf_counter,
) -> list[CostPoint]:
    """Time batches of 16, 32, 64 ... `max_tokens` tokens, made of texts of `text_tokens`.

    Stops before `budget_s` seconds of `wall` are spent, but not before the second size. `clock` may be the thread's CPU
    time, which other programs disturb less. With `warm_up` each size runs once untimed: the first batch of a size loads
    kernels on a GPU.
    """
    points, tokens = list[CostPoint](), 16
    engine.run(sample_texts(tokens, text_tokens))
    began = wall()
    while tokens <= max_tokens:
        texts = sample_texts(tokens, text_tokens)
        if warm_up:
            engine.run(texts)
        started = wall()
        best_s = min(_seconds(engine, texts, clock) for _ in range(BATCH_REPEATS))
        now = wall()
        points.append(CostPoint(tokens, best_s, (now - started) / BATCH_REPEATS))
        next_s = 2 * (now - started) * (1 + warm_up / BATCH_REPEATS)  # twice as many tokens
        if len(points) > 1 and now - began + next_s > budget_s:
            break
        tokens *= 2
    return points


def time_wide_text(
    engine: Engine,
    curve: Sequence[CostPoint],
    max_tokens: int,
    *,
    budget_s: float = 0.5,
    clock: Clock = time.perf_counter,
) -> CostPoint | None:
    """Time one long text; None if none of WIDE_SIZES fits in `max_tokens` and, by `curve`, in `budget_s`."""
    affordable = min(max_tokens, budget_s / BATCH_REPEATS * curve[-1].tokens_per_s)
    tokens = next((size for size in WIDE_SIZES if size <= affordable), None)
    if tokens is None:
        return None
    text = [sample_text(tokens)]
    return CostPoint(tokens, min(_seconds(engine, text, clock) for _ in range(BATCH_REPEATS)))


def find_multi_slot_tokens(
    one_slot: Engine,
    multi_slot: Engine,
    max_tokens: int,
    slots: int,
    *,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> int | None:
    """Return the length from which a text is clearly faster on several slots; None if up to `max_tokens` it never is.

    A timing that lacked cores is repeated, for RETRY_FOR_S in all: when the service starts its processes compete.
    """
    left_s = RETRY_FOR_S
    for tokens in (size for size in TEXT_SIZES if size <= max_tokens):
        while True:
            one_slot_s, multi_slot_s, cores = time_text(one_slot, multi_slot, tokens, clock)
            if multi_slot_s <= WORTHWHILE * one_slot_s:
                return tokens
            was_disturbed = one_slot_s >= MIN_TIMED_S and cores < MIN_CORE_SHARE * slots
            if not was_disturbed or left_s <= 0:
                break
            sleep(RETRY_EVERY_S)
            left_s -= RETRY_EVERY_S
    return None


def time_text(
    one_slot: Engine, multi_slot: Engine, tokens: int, clock: Clock = time.perf_counter
) -> tuple[float, float, float]:
    """Return the seconds of one text on each engine, and the cores that the second one used.

    The best of some runs; the engines take turns, so that other work disturbs both alike. The threads of several slots
    spin, so fewer cores than slots mean that others used them.
    """
    text = [sample_text(tokens)]
    multi_slot.run(text)
    one_slot_s, multi_slot_s, cores = list[float](), list[float](), list[tuple[float, float]]()
    for _ in range(TEXT_REPEATS):
        one_slot_s.append(_seconds(one_slot, text, clock))
        multi_slot_s.append(_seconds(multi_slot, text, clock))
        cpu_s = time.process_time()
        wall_s = _seconds(multi_slot, text, time.perf_counter)
        cores.append((wall_s, (time.process_time() - cpu_s) / wall_s))
    return min(one_slot_s), min(multi_slot_s), min(cores)[1]


def _seconds(engine: Engine, texts: Sequence[Encoding], clock: Clock) -> float:
    start = clock()
    engine.run(texts)
    return max(clock() - start, 1e-6)
