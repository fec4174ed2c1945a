"""Warnings of a pretraining run: each names one fault in the numbers of the steps and its likely cause.

A healthy run passes: the plateaus at its start, the noise of small batches, a spike that recovers. Pure: no clock, no
model, no files.
"""

import math

from bert.errors import TrainingError

MAX_RISE_NATS, MAX_RISE_SHARE = 0.5, 0.1
"""Highest healthy rise of the average loss over its lowest, the larger of the two: noise and harder texts cause it."""
MAX_SUSTAINED_STEPS, MIN_SUSTAINED_STEPS = 200, 30
"""Steps of a risen loss before a warning: a shorter rise recovers by itself. A short run waits a fiftieth of its steps."""
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
REPEAT_STEPS = 5000
"""Steps after which a fault that goes on is shown again."""


class MovingAverage:
    """Exponential average of a noisy number."""

    def __init__(self, memory_steps: float) -> None:
        """Weigh a value of `memory_steps` ago a third of a new one."""
        self._keep, self._weight, self._sum = math.exp(-1 / memory_steps), 0.0, 0.0

    def add(self, value: float) -> float:
        """Note a value; return the average."""
        self._sum = self._keep * self._sum + (1 - self._keep) * value
        self._weight = self._keep * self._weight + 1 - self._keep
        return self._sum / self._weight

    @property
    def is_settled(self) -> bool:
        """True once a single value moves the average little."""
        return self._weight > 1 - math.exp(-1)


class HealthMonitor:
    """The warnings of one run. A resumed run begins with a fresh monitor."""

    def __init__(
        self,
        vocab_size: float,
        *,
        warmup_ratio: float = 0.0,
        total_steps: int = 0,
        unigram_entropy: float | None = None,
        repeat_steps: int = REPEAT_STEPS,
    ) -> None:
        """`vocab_size` is infinite where the loss is not over words; `total_steps` is 0 where the clock ends the run.

        `unigram_entropy` (`validation.unigram_entropy`) is the loss of a guess by word frequencies alone, in nats.
        """
        self._guess, self._unigram = math.log(vocab_size), unigram_entropy
        self._warmup_ratio, self._repeat_steps = warmup_ratio, repeat_steps
        fiftieth = total_steps // 50 if total_steps else MAX_SUSTAINED_STEPS
        self._sustained_steps = min(MAX_SUSTAINED_STEPS, max(MIN_SUSTAINED_STEPS, fiftieth))
        self._loss, self._norm, self._lowest_ever = MovingAverage(50), MovingAverage(50), math.inf
        self._faulty_since: dict[str, int] = {}
        self._shown_at: dict[str, int] = {}
        self._last: tuple[float, float] | None = None  # loss and norm
        self._warm: tuple[int, float] | None = None  # step and share at the end of the warm-up
        self.restart()

    def restart(self) -> None:
        """Expect other examples (a phase of another length), whose higher loss is no divergence."""
        self._recent = MovingAverage(self._sustained_steps / 4)
        self._lowest, self._lowest_step = math.inf, 0

    def check(self, step: int, loss: float, grad_norm: float, done: float) -> str | None:
        """Check one step; return the warnings to show, a line each.

        `loss` is that of the language model alone, the mean a target in nats; `grad_norm` is before clipping; `done` is
        the share of the run that is over. Raises TrainingError for a number that is not finite.
        """
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingError(self._not_finite(step, loss, grad_norm))
        self._last = loss, grad_norm
        if self._warm is None and done >= self._warmup_ratio:
            self._warm = (step, done)
        warm_step, warm_done = self._warm or (step, done)
        divergence = self._divergence(step, loss)
        plateau = self._plateau(loss, grad_norm, step - warm_step, done - warm_done)
        shown = [
            warning
            for name, warning, sustained_steps in (
                ("divergence", divergence, self._sustained_steps),
                ("plateau", plateau, MIN_SUSTAINED_STEPS),
            )
            if self._is_due(name, warning, step, sustained_steps)
        ]
        return "\n".join(f"step {step:,}: {warning}" for warning in shown) or None

    def _is_due(self, name: str, warning: str | None, step: int, sustained_steps: int) -> bool:
        """Return True for a fault that has lasted long enough and was not shown of late."""
        if warning is None:
            self._faulty_since.pop(name, None)
            return False
        since, shown_at = self._faulty_since.setdefault(name, step), self._shown_at.get(name)
        if step - since < sustained_steps or (shown_at is not None and step - shown_at < self._repeat_steps):
            return False
        self._shown_at[name] = step
        return True

    def _divergence(self, step: int, loss: float) -> str | None:
        """Compare the average loss with its lowest, and with a blind guess."""
        loss = self._recent.add(loss)
        if not self._recent.is_settled:
            return None
        if loss < self._lowest:
            self._lowest, self._lowest_step = loss, step
        if loss > _highest_healthy(self._guess):
            return (
                f"the loss is {loss:.2f}, worse than a blind guess (log of the vocabulary: {self._guess:.2f}). "
                "Most likely the learning rate is too high; at the start of a run the weights or the corpus may "
                "belong to another vocabulary"
            )
        if loss > _highest_healthy(self._lowest):
            return (
                f"the loss diverges: {loss:.2f} on average, and it was {self._lowest:.2f} at step {self._lowest_step:,}. "
                "Most likely the learning rate is too high for this batch size: if there is still a checkpoint from before "
                f"step {self._lowest_step:,}, delete those after it and go on with half of learning_rate; else start anew, "
                "with that or a longer warm-up"
            )
        return None

    def _plateau(self, loss: float, grad_norm: float, warm_steps: int, warm_done: float) -> str | None:
        """Compare the lowest average with a blind guess and with word frequencies, each after its grace."""
        loss, norm = self._loss.add(loss), self._norm.add(grad_norm)
        if not self._loss.is_settled:
            return None
        self._lowest_ever = min(self._lowest_ever, loss)
        unigram = self._unigram
        uniform = UNIFORM_SHARE * self._guess if unigram is None else (self._guess + unigram) / 2
        if self._lowest_ever > uniform and _is_late(warm_steps, warm_done, *UNIFORM_GRACE):
            return (
                f"the loss is stuck at {loss:.2f}, near log(vocabulary) = {self._guess:.2f}: nothing is learned, and "
                f"the warm-up ended {warm_steps:,} steps ago. {_why_nothing_is_learned(norm)}"
            )
        if unigram is None or not _is_late(warm_steps, warm_done, *FREQUENCY_GRACE):
            return None
        if self._lowest_ever > FREQUENCY_SHARE * unigram:
            return (
                f"the loss is stuck at {loss:.2f}, and word frequencies alone give {unigram:.2f}: the model "
                "does not read its context. Most likely the learning rate is too high (halve it, or warm up longer) or the "
                "batch too small; if that does not help, check whether the tokens of the corpus make sense "
                "with its tokenizer"
            )
        return None

    def _not_finite(self, step: int, loss: float, grad_norm: float) -> str:
        what = f"step {step:,}: the loss is {loss:.4g}, the gradient norm {grad_norm:.4g}. "
        if self._last is None:
            return what + (
                "It is so from the first step on: look for weights that are not finite in the base, and for "
                "a base of another vocabulary"
            )
        if "divergence" in self._faulty_since:
            return what + "The run had been diverging: lower learning_rate, or warm up longer"
        return what + (
            f"Until then the run looked well (loss {self._last[0]:.2f}, norm {self._last[1]:.2g}). Start again "
            "from the last checkpoint: if it fails at the same step, lower learning_rate or max_grad_norm; if it does "
            "not, suspect the machine's memory"
        )


def _highest_healthy(loss: float) -> float:
    return loss + max(MAX_RISE_NATS, MAX_RISE_SHARE * loss)


def _is_late(warm_steps: int, warm_done: float, fewest: int, most: int, share: float) -> bool:
    return warm_steps >= most or (warm_steps >= fewest and warm_done >= share)


def _why_nothing_is_learned(grad_norm: float) -> str:
    """Return the likely cause, by the size of the gradients."""
    if grad_norm < 1e-3:
        return f"The gradients are nearly 0 (norm {grad_norm:.2g}): the weights are frozen, or take no part in the loss"
    if grad_norm > 10:
        return f"The gradients are large (norm {grad_norm:.2g}): most likely the learning rate is too high"
    return "Most likely the learning rate is far too low, or the tokens do not belong to this vocabulary"
