"""Warnings of a pretraining run: the health checks on each step, and which of their warnings are shown when.

Pure: no clock, no model, no files.
"""

import math
from collections.abc import Mapping

from bert.errors import TrainingError
from training.pretraining.health_checks import (
    Divergence,
    Explosion,
    HealthCheck,
    PairsAtChance,
    Plateau,
    StepNumbers,
)

MAX_SUSTAINED_STEPS, MIN_SUSTAINED_STEPS = 200, 30
"""Steps of a risen loss before a warning: a shorter rise recovers by itself. A short run waits a fiftieth of its steps."""
REPEAT_STEPS = 5000
LANGUAGE_LOSSES, PAIR_LOSSES = ("loss_mlm", "loss"), ("loss_nsp", "loss_sop")


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
        """`vocab_size` is infinite where the loss is not over words.

        `warmup_ratio` is a share of the run; `total_steps` is 0 where the clock ends it. `unigram_entropy`
        (`validation.unigram_entropy`) is the loss of a guess by word frequencies alone, in nats. A fault that goes on is
        shown again after `repeat_steps`.
        """
        self.warmup_ratio, self.total_steps, self.repeat_steps = warmup_ratio, total_steps, repeat_steps
        fiftieth = total_steps // 50 if total_steps else MAX_SUSTAINED_STEPS
        sustained = min(MAX_SUSTAINED_STEPS, max(MIN_SUSTAINED_STEPS, fiftieth))
        self.divergence, self.explosion = Divergence(vocab_size, sustained), Explosion()
        self._checks: tuple[HealthCheck, ...] = (
            self.divergence, self.explosion, Plateau(vocab_size, unigram_entropy), PairsAtChance(),
        )  # fmt: skip
        self._faulty_since: dict[HealthCheck, int] = {}
        self._shown_at: dict[HealthCheck, int] = {}
        self._last: StepNumbers | None = None
        self._warm: tuple[int, float] | None = None  # step and share at the end of the warm-up

    def restart(self) -> None:
        """Expect other examples (a phase of another length), whose higher loss is no divergence."""
        self.divergence.restart()

    def check(self, numbers: Mapping[str, float], done: float | None = None) -> str | None:
        """Check the numbers that the loop gives of a step, as `check_step` does."""
        loss = next(numbers[name] for name in LANGUAGE_LOSSES if name in numbers)
        pair_loss = next((numbers[name] for name in PAIR_LOSSES if name in numbers), None)
        return self.check_step(int(numbers["step"]), loss, numbers["grad_norm"], done, pair_loss)

    def check_step(
        self,
        step: int,
        loss: float,
        grad_norm: float,
        done: float | None = None,
        pair_loss: float | None = None,
    ) -> str | None:
        """Check one step; return the warnings to show, a line each.

        `loss` is that of the language model alone, the mean a target in nats; `grad_norm` is before clipping; `done` is
        the share of the run that is over, by default `step` over `total_steps`. Raises TrainingError for a number that
        is not finite.
        """
        if not all(map(math.isfinite, (loss, grad_norm, pair_loss or 0.0))):
            raise TrainingError(self._not_finite(step, loss, grad_norm, pair_loss))
        if done is None:
            done = step / self.total_steps if self.total_steps else 1.0
        if self._warm is None and done >= self.warmup_ratio:
            self._warm = (step, done)
        warm_step, warm_done = self._warm or (step, done)
        steps = max(1, step - self._last.step) if self._last else 1
        self._last = StepNumbers(step, steps, loss, grad_norm, pair_loss, step - warm_step, done - warm_done)
        shown = [warning for check in self._checks if (warning := self._to_show(check, self._last))]
        return "\n".join(f"step {step:,}: {warning}" for warning in shown) or None

    def _to_show(self, check: HealthCheck, numbers: StepNumbers) -> str | None:
        """Return the warning of a check whose fault has lasted long enough and was not shown of late."""
        warning, step = check.check(numbers), numbers.step
        if warning is None:
            self._faulty_since.pop(check, None)
            return None
        since, shown_at = self._faulty_since.setdefault(check, step), self._shown_at.get(check)
        is_news = shown_at is None or (check.repeats and step - shown_at >= self.repeat_steps)
        if step - since < check.sustained_steps or not is_news:
            return None
        self._shown_at[check] = step
        return warning

    def _not_finite(self, step: int, loss: float, grad_norm: float, pair_loss: float | None) -> str:
        pairs = "" if pair_loss is None else f", the pair task's {pair_loss:.4g}"
        what = f"step {step:,}: the loss is {loss:.4g}{pairs}, the gradient norm {grad_norm:.4g}. "
        if self._last is None:
            return what + (
                "It is so from the first step on: look for weights that are not finite in the base, and for "
                "a base of another vocabulary"
            )
        if self.divergence in self._faulty_since or self.explosion in self._faulty_since:
            return what + "The run had been diverging: lower learning_rate, or warm up longer"
        return what + (
            f"Until then the run looked well (loss {self._last.loss:.2f}, norm {self._last.grad_norm:.2g}). Start again "
            "from the last checkpoint: if it fails at the same step, lower learning_rate or max_grad_norm; if it does "
            "not, suspect the machine's memory"
        )
