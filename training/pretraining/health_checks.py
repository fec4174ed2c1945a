"""Checks of a pretraining run: each finds one fault in the numbers of the steps and names its likely cause.

A healthy run passes them all: the plateaus at its start, the noise of small batches, a spike that recovers.
"""

import math
from dataclasses import dataclass
from typing import Protocol

MAX_RISE_NATS, MAX_RISE_SHARE = 0.5, 0.1
"""Highest healthy rise of the average loss over its lowest, the larger of the two: noise and harder texts cause it."""
NORM_FACTOR, MIN_EXPLODING_NORM = 10.0, 10.0
"""Multiple of the usual gradient norm that is an explosion, and the lowest norm that is: a small one may rise from 1e-3."""
NORM_STEPS = 20
"""Steps over which the gradient norm is averaged."""
UNIFORM_SHARE = 0.9
"""Share of log(vocabulary) above which nothing is learned: the word frequencies of real text bring the loss to 0.7."""
UNIFORM_GRACE = (100, 500, 0.05)
"""Grace after the warm-up for a loss at that level: fewest steps, most steps, share of the run."""
FREQUENCY_SHARE = 0.9
"""Share of the entropy of words above which the context is not read.

A tenth of the masked words is left as it is, so a model that only copies and counts gets below the entropy.
"""
FREQUENCY_GRACE = (1000, 3000, 0.4)
"""Grace for a loss at word frequencies: BERT may rest there for its first thousands of steps."""
PAIR_LOSS = 0.68
"""Loss above which pairs are guessed: log 2 is 0.693, and 0.688 for the paper's pairs, over half of them random."""
PAIR_GRACE = (1000, 5000, 0.3)
"""Grace for pairs at chance."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """Numbers of one step. Losses are means a target, in nats."""

    step: int
    steps: int
    """Number of steps since the previous numbers."""
    loss: float
    """Loss of the language model alone."""
    grad_norm: float
    """Gradient norm before clipping."""
    pair_loss: float | None = None
    warm_steps: int = 0
    """Number of steps since the end of the warm-up; 0 during it."""
    warm_done: float = 0.0
    """Share of the run since the end of the warm-up."""


class HealthCheck(Protocol):
    """A check of every step, which returns a warning as long as the fault lasts."""

    sustained_steps: int
    """Number of steps that the fault must last before the warning is shown."""
    repeats: bool
    """True for a warning that is shown again while the fault goes on."""

    def check(self, numbers: StepNumbers) -> str | None:
        """Note the numbers of a step; return the warning, None without a fault."""


class MovingAverage:
    """Exponential average of a noisy number; steps between values may be left out."""

    def __init__(self, memory_steps: float) -> None:
        """Weigh a value of `memory_steps` ago a third of a new one."""
        self.memory_steps, self._weight, self._sum = memory_steps, 0.0, 0.0

    def add(self, value: float, steps: int) -> float:
        """Note a value, `steps` after the last one; return the average."""
        keep = math.exp(-steps / self.memory_steps)
        self._sum, self._weight = keep * self._sum + (1 - keep) * value, keep * self._weight + 1 - keep
        return self._sum / self._weight

    @property
    def is_settled(self) -> bool:
        """True once a single value moves the average little."""
        return self._weight > 1 - math.exp(-1)


class Divergence:
    """Check for a loss that rises and does not come back."""

    def __init__(self, vocab_size: float, sustained_steps: int) -> None:
        """Compare with a blind guess among `vocab_size` pieces too."""
        self.sustained_steps, self.repeats, self.guess = sustained_steps, True, math.log(vocab_size)
        self.restart()

    def restart(self) -> None:
        """Forget the lowest loss: examples of another length or masking follow."""
        self.average, self.lowest, self.lowest_step = MovingAverage(self.sustained_steps / 4), math.inf, 0

    def check(self, numbers: StepNumbers) -> str | None:
        """Compare the average with its lowest, and with a blind guess."""
        loss = self.average.add(numbers.loss, numbers.steps)
        if not self.average.is_settled:
            return None
        if loss < self.lowest:
            self.lowest, self.lowest_step = loss, numbers.step
        if loss > _highest_healthy(self.guess):
            return (
                f"the loss is {loss:.2f}, worse than a blind guess (log of the vocabulary: {self.guess:.2f}). "
                "Most likely the learning rate is too high; at the start of a run the weights or the corpus may "
                "belong to another vocabulary"
            )
        if loss > _highest_healthy(self.lowest):
            return (
                f"the loss diverges: {loss:.2f} on average, and it was {self.lowest:.2f} at step {self.lowest_step:,}. "
                "Most likely the learning rate is too high for this batch size: if there is still a checkpoint from before "
                f"step {self.lowest_step:,}, delete those after it and go on with half of learning_rate; else start anew, "
                "with that or a longer warm-up"
            )
        return None


class Plateau:
    """Check for a loss that never left the level of a blind guess, or that of word frequencies."""

    sustained_steps, repeats = 30, True

    def __init__(self, vocab_size: float, unigram_entropy: float | None) -> None:
        """Without the `unigram_entropy` of the corpus, in nats, only a blind guess is compared with."""
        self.guess, self.unigram = math.log(vocab_size), unigram_entropy
        between = UNIFORM_SHARE * self.guess
        self.uniform_level = between if unigram_entropy is None else (self.guess + unigram_entropy) / 2
        self.average, self.norm, self.lowest = MovingAverage(50), MovingAverage(50), math.inf

    def check(self, numbers: StepNumbers) -> str | None:
        """Compare the lowest average with both levels, each after its grace."""
        loss = self.average.add(numbers.loss, numbers.steps)
        norm = self.norm.add(numbers.grad_norm, numbers.steps)
        if self.average.is_settled:
            self.lowest = min(self.lowest, loss)
        if math.inf > self.lowest > self.uniform_level and _is_late(numbers, *UNIFORM_GRACE):
            return (
                f"the loss is stuck at {loss:.2f}, near log(vocabulary) = {self.guess:.2f}: nothing is learned, and "
                f"the warm-up ended {numbers.warm_steps:,} steps ago. {_why_nothing_is_learned(norm)}"
            )
        if self.unigram is None or not _is_late(numbers, *FREQUENCY_GRACE):
            return None
        if math.inf > self.lowest > FREQUENCY_SHARE * self.unigram:
            return (
                f"the loss is stuck at {loss:.2f}, and word frequencies alone give {self.unigram:.2f}: the model "
                "does not read its context. Most likely the learning rate is too high (halve it, or warm up longer) or the "
                "batch too small; if that does not help, check whether the tokens of the corpus make sense "
                "with its tokenizer"
            )
        return None


class Explosion:
    """Check for a gradient norm that is many times the usual one, and stays there."""

    sustained_steps, repeats = NORM_STEPS, True

    def __init__(self) -> None:
        """Average logarithms: one step of a thousandfold norm is clipped and does no harm."""
        self.now, self.usual, self.lowest = MovingAverage(NORM_STEPS), MovingAverage(5 * NORM_STEPS), math.inf

    def check(self, numbers: StepNumbers) -> str | None:
        """Compare the latest norms with the lowest usual one."""
        log = math.log(max(numbers.grad_norm, 1e-12))
        norm, usual = math.exp(self.now.add(log, numbers.steps)), math.exp(self.usual.add(log, numbers.steps))
        if self.usual.is_settled:
            self.lowest = min(self.lowest, usual)
        if norm < max(NORM_FACTOR * self.lowest, MIN_EXPLODING_NORM):
            return None
        return (
            f"the gradient norm is {norm:.3g}, and {self.lowest:.3g} was usual. Most likely the learning rate is too "
            "high, and the loss will diverge next: lower it, or warm up longer"
        )


class PairsAtChance:
    """Check for a pair task at chance long after the start, which the masked words do not suffer from."""

    sustained_steps, repeats = 30, False

    def __init__(self) -> None:
        """Average over many steps: the loss of pairs is noisy."""
        self.average = MovingAverage(200)

    def check(self, numbers: StepNumbers) -> str | None:
        """Compare the average with chance."""
        if numbers.pair_loss is None:
            return None
        loss = self.average.add(numbers.pair_loss, numbers.steps)
        if loss < PAIR_LOSS or not _is_late(numbers, *PAIR_GRACE):
            return None
        return (
            f"for information: the pair task is at chance (loss {loss:.3f}, log 2 is 0.693). It is often learned late. "
            "It cannot be learned where documents are single sentences or all of one subject; the masked words do not "
            "need it"
        )


def _highest_healthy(loss: float) -> float:
    return loss + max(MAX_RISE_NATS, MAX_RISE_SHARE * loss)


def _is_late(numbers: StepNumbers, fewest: int, most: int, share: float) -> bool:
    return numbers.warm_steps >= most or (numbers.warm_steps >= fewest and numbers.warm_done >= share)


def _why_nothing_is_learned(grad_norm: float) -> str:
    """Return the likely cause, by the size of the gradients."""
    if grad_norm < 1e-3:
        return f"The gradients are nearly 0 (norm {grad_norm:.2g}): the weights are frozen, or take no part in the loss"
    if grad_norm > MIN_EXPLODING_NORM:
        return f"The gradients are large (norm {grad_norm:.2g}): most likely the learning rate is too high"
    return "Most likely the learning rate is far too low, or the tokens do not belong to this vocabulary"
