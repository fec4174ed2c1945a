"""How many engine slots, and how many tokens a batch: measured when the engine warms up.

Throughput rises with the tokens of a batch until the cores are used well, then stays; past that knee a larger
batch only makes everyone in it wait longer. The budget is the knee.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bert.errors import ConfigError
from bert.tokenizer import Encoding
from service.engine.onnx_engine import GPU_SLOTS, Engine

TEXT_TOKENS = 32
"""Length of the texts that the curve is measured with; real sentences have about 35 tokens."""
REPEATS, ALONE_REPEATS = 2, 4
MIN_BUDGET = 64
"""A measurement that was disturbed must not make batches of single words."""
Clock = Callable[[], float]
MOST_WIDE = 4
"""Threads that are worth their meeting again after each operator, for a text."""
ALONE_TOKENS = (16, 32, 64, 128, 256, 512)
WORTH = 0.85
"""A wide run must take at most this part of a narrow one's time, or the other slots are better left for who comes."""
PATIENCE_S, AGAIN_S = 3.0, 0.2
"""For the cores to be free, in all, and from one try to the next."""
UNDISTURBED = 0.9
"""Of its cores a run must have had, or it says nothing."""
LEAST_MS = 1.0
"""A shorter run ends before its threads are all awake, whatever else the cores do."""
KNEE = 0.9
"""The budget is the smallest batch with this share of the best throughput."""
FULL = 0.98
"""And a full batch the smallest with this."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Engine slots, and threads in each."""

    slots: int
    threads: int

    @property
    def wide_slots(self) -> int:
        """Return how many slots a lone text may use together, 1 where there is nothing to win."""
        return min(self.slots, MOST_WIDE) if self.threads == 1 else 1


def plan(cores: int, slots: int | None = None, threads: int | None = None, *, on_gpu: bool = False) -> Plan:
    """Divide the cores: a slot with one thread on each, unless told otherwise; a GPU has GPU_SLOTS.

    Raises ConfigError if slots x threads pass the cores: more busy threads than cores slow one another down.
    """
    if on_gpu:
        return Plan(slots or GPU_SLOTS, threads or 1)
    if slots is None:
        slots = max(1, cores // (threads or 1))
    if threads is None:
        threads = max(1, cores // slots)
    if slots * threads > cores and (slots, threads) != (1, 1):
        raise ConfigError(
            f"engine_slots ({slots}) x engine_threads_per_slot ({threads}) is more than the {cores} cores "
            "that this process may use"
        )
    return Plan(slots, threads)


@dataclass(frozen=True, slots=True)
class Point:
    """A batch's tokens and the engine's seconds for it: the best, and by the wall on average."""

    tokens: int
    seconds: float
    wall_s: float = 0.0
    """0 if it was not measured. What else runs on the machine is in it."""

    @property
    def tokens_per_s(self) -> float:
        """Return the throughput."""
        return self.tokens / self.seconds


def cost_curve(
    engine: Engine,
    max_tokens: int,
    *,
    text_tokens: int = TEXT_TOKENS,
    budget_s: float = 0.5,
    warms_up: bool = False,
    clock: Clock = time.perf_counter,
    wall: Clock = time.perf_counter,
) -> list[Point]:
    """Time batches of 16, 32, 64 ... `max_tokens` tokens, the best of REPEATS each.

    With `warms_up` each size runs once before: a GPU's first of a size loads kernels, which takes longer than the batch.

    Stops before `budget_s` on the clock on the `wall` is used, but not before the second size. `clock` may be the
    thread's CPU time, which other programs on the machine disturb less. No text is longer than `text_tokens`.
    """
    points, tokens = list[Point](), 16
    engine.run(sample_texts(tokens, text_tokens))
    began = wall()
    while tokens <= max_tokens:
        texts = sample_texts(tokens, text_tokens)
        if warms_up:
            engine.run(texts)
        started = wall()
        best_s = min(_timed(engine, texts, clock) for _ in range(REPEATS))
        now = wall()
        points.append(Point(tokens, best_s, (now - started) / REPEATS))
        next_s = 2 * (now - started) * (1 + warms_up / REPEATS)  # twice as many tokens
        if len(points) > 1 and now - began + next_s > budget_s:
            break
        tokens *= 2
    return points


@dataclass(frozen=True, slots=True)
class Alone:
    """The milliseconds of one text on one slot and on several, None where there is no engine for that."""

    tokens: int
    narrow_ms: float
    wide_ms: float | None
    wide_cores: float = math.inf
    """That the wide run had, by its CPU time: its threads wait awake, so fewer than it has threads were not to be had."""

    @property
    def is_worth_it(self) -> bool:
        """Tell whether several slots are clearly faster."""
        return self.wide_ms is not None and self.wide_ms <= WORTH * self.narrow_ms


def wide_from(
    narrow: Engine,
    wide: Engine,
    max_tokens: int,
    slots: int,
    *,
    clock: Clock = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
) -> int | None:
    """Return from how many tokens a text is clearly faster on `wide`, None if on none of up to `max_tokens`.

    While something else has a part of the cores of its `slots`, as the service's other processes have when they start, it
    is measured again, for PATIENCE_S in all.
    """
    patience_s = PATIENCE_S
    for tokens in (size for size in ALONE_TOKENS if size <= max_tokens):
        found = _alone(narrow, wide, tokens, clock)
        while _was_disturbed(found, slots) and patience_s > 0:
            wait(AGAIN_S)
            patience_s -= AGAIN_S
            found = _alone(narrow, wide, tokens, clock)
        if found.is_worth_it:
            return tokens
    return None


def _was_disturbed(found: Alone, slots: int) -> bool:
    is_real = found.narrow_ms >= LEAST_MS
    return is_real and not found.is_worth_it and found.wide_cores < UNDISTURBED * slots


def one_text(
    narrow: Engine, wide: Engine | None, max_tokens: int, *, clock: Clock = time.perf_counter
) -> list[Alone]:
    """Time one text of 16, 32, 64 ... `max_tokens` tokens on both."""
    return [_alone(narrow, wide, tokens, clock) for tokens in ALONE_TOKENS if tokens <= max_tokens]


def _alone(narrow: Engine, wide: Engine | None, tokens: int, clock: Clock) -> Alone:
    """Time one text, the best of some runs; the engines take turns, so that what else happens, happens to both."""
    engines, text = [narrow, *([wide] if wide is not None else [])], [_sample_text(tokens)]
    engines[-1].run(text)
    rounds = list[list[float]]()
    cores = list[tuple[float, float]]()
    for _ in range(ALONE_REPEATS):
        rounds.append([1000 * _timed(engine, text, clock) for engine in engines])
        if wide is not None:
            cpu_s, seconds = time.process_time(), time.perf_counter()
            wide.run(text)
            seconds = max(time.perf_counter() - seconds, 1e-6)
            cores.append((seconds, (time.process_time() - cpu_s) / seconds))
    best = [min(times) for times in zip(*rounds, strict=True)]
    if wide is None:
        return Alone(tokens, best[0], None)
    return Alone(tokens, best[0], best[1], min(cores)[1])


def _timed(engine: Engine, texts: Sequence[Encoding], clock: Clock) -> float:
    start = clock()
    engine.run(texts)
    return max(clock() - start, 1e-6)


def knee(curve: Sequence[Point], share: float = KNEE) -> int:
    """Return the tokens of the smallest batch with this share of the curve's best throughput, at least MIN_BUDGET."""
    best = max(point.tokens_per_s for point in curve)
    return max(MIN_BUDGET, min(point.tokens for point in curve if point.tokens_per_s >= share * best))


def sample_texts(tokens: int, text_tokens: int = TEXT_TOKENS) -> list[Encoding]:
    """Return made-up texts of up to `text_tokens` tokens each, `tokens` in all.

    Their ids are small, so in any vocabulary. Each has one mask, for the models that fill them.
    """
    whole, rest = divmod(tokens, text_tokens)
    lengths = [text_tokens] * whole + ([rest] if rest else [])
    return [_sample_text(length) for length in lengths]


def _sample_text(length: int) -> Encoding:
    zeros = np.zeros(length, np.int32)
    word_ids = np.arange(length, dtype=np.int32) - 1
    word_ids[-1] = -1
    sequence_ids = np.minimum(word_ids, 0)
    word_ids[1 : min(2, length - 1)] = -1
    return Encoding(zeros, zeros, np.zeros((length, 2), np.int32), word_ids, sequence_ids)
