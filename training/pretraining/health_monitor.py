"""Looks at the numbers of each step and says, with the likely cause, when a run goes wrong.

No clock, no model, no files: only numbers go in, and sentences come out.
"""

import math
from collections.abc import Mapping

from bert.errors import TrainingError
from training.pretraining.alarms import Alarm, Divergence, Explosion, PairsGuessed, Plateau, Point

SUSTAINED_STEPS, FEWEST_SUSTAINED_STEPS = 200, 30
"""A loss that is up for less recovers by itself, as a rule; a short run waits a fiftieth of its steps instead."""
REPEAT_STEPS = 5000
LANGUAGE_LOSSES, PAIR_LOSSES = ("loss_mlm", "loss"), ("loss_nsp", "loss_sop")


class Watch:
    """The warnings of one run. A resumed run begins with a fresh watch."""

    def __init__(
        self,
        vocab_size: float,
        *,
        warmup_ratio: float = 0.0,
        total_steps: int = 0,
        unigram_entropy: float | None = None,
        repeat_steps: int = REPEAT_STEPS,
    ) -> None:
        """`vocab_size` is infinite where the loss is not that of telling words.

        `warmup_ratio` is a share of the run; `total_steps` is 0 where the clock ends it.

        `unigram_entropy`: of the corpus in nats (`held_out.unigram_entropy`), the loss of one who knows how frequent
        words are and nothing else. What stays wrong is said again after `repeat_steps`.
        """
        self.warmup_ratio, self.total_steps, self.repeat_steps = warmup_ratio, total_steps, repeat_steps
        few = total_steps // 50 if total_steps else SUSTAINED_STEPS
        self.divergence = Divergence(vocab_size, min(SUSTAINED_STEPS, max(FEWEST_SUSTAINED_STEPS, few)))
        self.explosion = Explosion()
        self._alarms: tuple[Alarm, ...] = (
            self.divergence, self.explosion, Plateau(vocab_size, unigram_entropy), PairsGuessed(),
        )  # fmt: skip
        self._wrong_since: dict[Alarm, int] = {}
        self._said: dict[Alarm, int] = {}
        self._last: Point | None = None
        self._warm: tuple[int, float] | None = None  # step and share at the end of the warm-up

    def restart(self) -> None:
        """Say that the examples change (a phase of another length): a higher loss is no divergence then."""
        self.divergence.restart()

    def look(self, numbers: Mapping[str, float], done: float | None = None) -> str | None:
        """Note the numbers that the loop gives of a step, as in `step`."""
        loss = next(numbers[name] for name in LANGUAGE_LOSSES if name in numbers)
        pair_loss = next((numbers[name] for name in PAIR_LOSSES if name in numbers), None)
        return self.step(int(numbers["step"]), loss, numbers["grad_norm"], done, pair_loss)

    def step(
        self,
        step: int,
        loss: float,
        grad_norm: float,
        done: float | None = None,
        pair_loss: float | None = None,
    ) -> str | None:
        """Note one step; return what is wrong, a line each, if it has not been said of late.

        `loss` is the language model's, the mean a target in nats, and not a sum with other losses; `grad_norm` that
        before clipping; `done` the share of the run that is over, by default `step` over `total_steps`. Raises
        TrainingError for a number that is not finite.
        """
        if not all(map(math.isfinite, (loss, grad_norm, pair_loss or 0.0))):
            raise TrainingError(self._not_finite(step, loss, grad_norm, pair_loss))
        if done is None:
            done = step / self.total_steps if self.total_steps else 1.0
        if self._warm is None and done >= self.warmup_ratio:
            self._warm = (step, done)
        warm_step, warm_done = self._warm or (step, done)
        steps = max(1, step - self._last.step) if self._last else 1
        point = Point(step, steps, loss, grad_norm, pair_loss, step - warm_step, done - warm_done)
        self._last = point
        said = [message for alarm in self._alarms if (message := self._ask(alarm, point))]
        return "\n".join(f"step {step:,}: {message}" for message in said) or None

    def _ask(self, alarm: Alarm, point: Point) -> str | None:
        """Return what the alarm says if that has gone on for long enough and is not a repetition."""
        message = alarm.look(point)
        if message is None:
            self._wrong_since.pop(alarm, None)
            return None
        since = self._wrong_since.setdefault(alarm, point.step)
        if point.step - since < alarm.sustained_steps or not self._is_news(alarm, point.step):
            return None
        self._said[alarm] = point.step
        return message

    def _is_news(self, alarm: Alarm, step: int) -> bool:
        said = self._said.get(alarm)
        return said is None or (alarm.repeats and step - said >= self.repeat_steps)

    def _not_finite(self, step: int, loss: float, grad_norm: float, pair_loss: float | None) -> str:
        pairs = "" if pair_loss is None else f", the pair task's {pair_loss:.4g}"
        what = f"step {step:,}: the loss is {loss:.4g}{pairs}, the gradient norm {grad_norm:.4g}. "
        if self._last is None:
            return what + (
                "It is so from the first step on: look for weights that are not finite in the base, and for "
                "a base of another vocabulary"
            )
        if self.divergence in self._wrong_since or self.explosion in self._wrong_since:
            return what + "The run had been diverging: lower learning_rate, or warm up longer"
        return what + (
            f"Until then the run looked well (loss {self._last.loss:.2f}, norm {self._last.grad_norm:.2g}). Start again "
            "from the last checkpoint: if it fails at the same step, lower learning_rate or max_grad_norm; if it does "
            "not, suspect the machine's memory"
        )
