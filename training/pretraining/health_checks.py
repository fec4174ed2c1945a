"""What can go wrong in a pretraining run, each with its sign in the numbers and its likely cause.

A healthy run rings none: not the plateaus at its start, not the noise of small batches, not a spike that recovers.
"""

import math
from dataclasses import dataclass
from typing import Protocol

RISE_NATS, RISE_SHARE = 0.5, 0.1
"""The average loss may lie above its lowest by the larger of the two: noise and harder texts do that."""
NORM_FACTOR, NORM_LEAST = 10.0, 10.0
"""A gradient explodes at this many times its usual norm, and above 10: a converged model may well rise from 1e-3."""
NORM_STEPS = 20
UNIFORM_SHARE = 0.9
"""Loss over log(vocabulary) above which nothing is learned: the word frequencies of real text bring it to 0.7."""
UNIFORM_LATE = (100, 500, 0.05)
"""How long after the warm-up the loss may still be there: as a share of the run, but no fewer and no more steps."""
FREQUENCY_SHARE = 0.9
"""A tenth of the masked words is left as it is, so that a model which only copies and counts gets below the entropy."""
FREQUENCY_LATE = (1000, 3000, 0.4)
"""BERT may rest on the plateau of word frequencies for its first thousands of steps."""
PAIR_LOSS = 0.68
"""Above it pairs are guessed: log 2 is 0.693, and 0.688 for the paper's pairs, a little over half of them random."""
PAIR_LATE = (1000, 5000, 0.3)


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one step. Losses are means a target, in nats."""

    step: int
    steps: int
    """Since the last point."""
    loss: float
    """The language model's."""
    grad_norm: float
    """Before clipping."""
    pair_loss: float | None = None
    warm_steps: int = 0
    """Since the end of the warm-up; 0 in it."""
    warm_done: float = 0.0
    """The same as a share of the run."""


class Alarm(Protocol):
    """Looks at every point, and says what is wrong as long as it is."""

    sustained_steps: int
    """How long it must be wrong before it is told."""
    repeats: bool
    """Whether it is told again where it goes on and on."""

    def look(self, point: Point) -> str | None:
        """Note a point; return what is wrong now, None if nothing is."""


class Average:
    """Mean of a noisy number that forgets; steps may be left out in between."""

    def __init__(self, memory_steps: float) -> None:
        """A value of `memory_steps` ago counts a third of a new one."""
        self.memory_steps, self._weight, self._sum = memory_steps, 0.0, 0.0

    def add(self, value: float, steps: int) -> float:
        """Note a value, `steps` after the last one; return the mean."""
        keep = math.exp(-steps / self.memory_steps)
        self._sum, self._weight = keep * self._sum + (1 - keep) * value, keep * self._weight + 1 - keep
        return self._sum / self._weight

    @property
    def is_settled(self) -> bool:
        """Whether it is over so many values that one of them moves it little."""
        return self._weight > 1 - math.exp(-1)


class Divergence:
    """The loss rises and does not come back."""

    def __init__(self, vocab_size: float, sustained_steps: int) -> None:
        """Know what a blind guess costs."""
        self.sustained_steps, self.repeats, self.guess = sustained_steps, True, math.log(vocab_size)
        self.restart()

    def restart(self) -> None:
        """Forget what was lowest: texts of another length, or masked otherwise, follow."""
        self.average, self.lowest, self.lowest_step = Average(self.sustained_steps / 4), math.inf, 0

    def look(self, point: Point) -> str | None:
        """Compare the average with its lowest, and with a blind guess."""
        loss = self.average.add(point.loss, point.steps)
        if not self.average.is_settled:
            return None
        if loss < self.lowest:
            self.lowest, self.lowest_step = loss, point.step
        if loss > _well_over(self.guess):
            return (
                f"the loss is {loss:.2f}, worse than a blind guess (log of the vocabulary: {self.guess:.2f}). "
                "Most likely the learning rate is too high; at the start of a run the weights or the corpus may "
                "belong to another vocabulary"
            )
        if loss > _well_over(self.lowest):
            return (
                f"the loss diverges: {loss:.2f} on average, and it was {self.lowest:.2f} at step {self.lowest_step:,}. "
                "Most likely the learning rate is too high for this batch size: if there is still a checkpoint from before "
                f"step {self.lowest_step:,}, delete those after it and go on with half of learning_rate; else start anew, "
                "with that or a longer warm-up"
            )
        return None


class Plateau:
    """The loss has never left the level of a blind guess, or that of word frequencies."""

    sustained_steps, repeats = 30, True

    def __init__(self, vocab_size: float, unigram_entropy: float | None) -> None:
        """`unigram_entropy` of the corpus in nats; without it word frequencies are not told from learning."""
        self.guess, self.unigram = math.log(vocab_size), unigram_entropy
        between = UNIFORM_SHARE * self.guess
        self.uniform_level = between if unigram_entropy is None else (self.guess + unigram_entropy) / 2
        self.average, self.norm, self.lowest = Average(50), Average(50), math.inf

    def look(self, point: Point) -> str | None:
        """Compare the lowest average with both levels, each after its time."""
        loss = self.average.add(point.loss, point.steps)
        norm = self.norm.add(point.grad_norm, point.steps)
        if self.average.is_settled:
            self.lowest = min(self.lowest, loss)
        if math.inf > self.lowest > self.uniform_level and _is_late(point, *UNIFORM_LATE):
            return (
                f"the loss is stuck at {loss:.2f}, near log(vocabulary) = {self.guess:.2f}: nothing is learned, and "
                f"the warm-up ended {point.warm_steps:,} steps ago. {_why_nothing(norm)}"
            )
        if self.unigram is None or not _is_late(point, *FREQUENCY_LATE):
            return None
        if math.inf > self.lowest > FREQUENCY_SHARE * self.unigram:
            return (
                f"the loss is stuck at {loss:.2f}, and who knows word frequencies alone gets {self.unigram:.2f}: the model "
                "does not read its context. Most likely the learning rate is too high (halve it, or warm up longer) or the "
                "batch too small; if that does not help, look whether the tokens of the corpus make sense "
                "with its tokenizer"
            )
        return None


class Explosion:
    """The gradient norm is many times what it was, and stays there."""

    sustained_steps, repeats = NORM_STEPS, True

    def __init__(self) -> None:
        """Average logarithms: one step of a thousandfold norm is clipped and does no harm."""
        self.now, self.usual, self.lowest = Average(NORM_STEPS), Average(5 * NORM_STEPS), math.inf

    def look(self, point: Point) -> str | None:
        """Compare the norm of late with the lowest that was usual."""
        log = math.log(max(point.grad_norm, 1e-12))
        norm, usual = math.exp(self.now.add(log, point.steps)), math.exp(self.usual.add(log, point.steps))
        if self.usual.is_settled:
            self.lowest = min(self.lowest, usual)
        if norm < max(NORM_FACTOR * self.lowest, NORM_LEAST):
            return None
        return (
            f"the gradient norm is {norm:.3g}, and {self.lowest:.3g} was usual. Most likely the learning rate is too "
            "high, and the loss will diverge next: lower it, or warm up longer"
        )


class PairsGuessed:
    """The pair task is at chance long after the start: worth knowing, and harmless for the masked words."""

    sustained_steps, repeats = 30, False

    def __init__(self) -> None:
        """Average over many steps: the loss of pairs is noisy."""
        self.average = Average(200)

    def look(self, point: Point) -> str | None:
        """Compare the average with chance."""
        if point.pair_loss is None:
            return None
        loss = self.average.add(point.pair_loss, point.steps)
        if loss < PAIR_LOSS or not _is_late(point, *PAIR_LATE):
            return None
        return (
            f"for information: the pair task is at chance (loss {loss:.3f}, log 2 is 0.693). It is often learned late. "
            "It cannot be learned where documents are single sentences or all of one subject; the masked words do not "
            "need it"
        )


def _well_over(loss: float) -> float:
    return loss + max(RISE_NATS, RISE_SHARE * loss)


def _is_late(point: Point, fewest: int, most: int, share: float) -> bool:
    return point.warm_steps >= most or (point.warm_steps >= fewest and point.warm_done >= share)


def _why_nothing(grad_norm: float) -> str:
    """Return the likely cause of learning nothing at all: the size of the gradients tells it."""
    if grad_norm < 1e-3:
        return (
            f"The gradients are nearly nothing (norm {grad_norm:.2g}): the weights are frozen, or not of use"
        )
    if grad_norm > NORM_LEAST:
        return f"The gradients are large (norm {grad_norm:.2g}): most likely the learning rate is too high"
    return "Most likely the learning rate is far too low, or the tokens do not belong to this vocabulary"
