"""Batch size, phase and learning rate by the share of the run that is over: pure functions of the settings."""

from dataclasses import dataclass

from training.core.schedules import ramp, rate_share
from training.pretraining.settings import Phase, PretrainSettings


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the steps; `done` is the share of the run that is over, 0 to 1."""

    settings: PretrainSettings
    world: int = 1

    @property
    def phases(self) -> list[Phase]:
        """The phases, or the one that a run without any is."""
        return self.settings.phases or [Phase(max_tokens=self.settings.max_tokens, share=1.0)]

    @property
    def total_steps(self) -> int:
        """Steps of the run; 0 where the clock ends it."""
        return self.settings.max_steps

    @property
    def total_s(self) -> float:
        """Seconds of the run; 0 where its steps end it."""
        return 60.0 * self.settings.max_minutes

    def done(self, step: int, seconds: float) -> float:
        """Return the share of the run that is over after `step` steps and `seconds` of training."""
        if self.settings.max_steps:
            return min(1.0, step / self.settings.max_steps)
        return min(1.0, seconds / self.total_s)

    def phase(self, done: float) -> int:
        """Return which phase the step after `done` belongs to."""
        end = 0.0
        for number, phase in enumerate(self.phases):
            end += phase.share
            if done < end - 1e-9:
                return number
        return len(self.phases) - 1

    def batch_size(self, done: float) -> int:
        """Return the examples of the next step over all processes: a multiple of their number."""
        settings = self.settings
        full = self.phases[self.phase(done)].batch_size or settings.batch_size
        size = ramp(done, settings.ramp_from, full, settings.ramp_share) if settings.ramp_from else full
        return max(self.world, size - size % self.world)

    def rate(self, step: int, seconds: float) -> float:
        """Return the learning rate of the step after `step` steps: taken at its middle, so that none is 0.

        The schedule `google` takes it at its beginning, as its code does: the first step has rate 0.
        """
        settings = self.settings
        half = 0.5 / settings.max_steps if settings.max_steps and settings.schedule != "google" else 0.0
        done = self.done(step, seconds) + half
        share = rate_share(
            settings.schedule,
            done,
            settings.warmup_ratio,
            settings.decay_ratio,
            settings.final_ratio,
            settings.decay_shape,
        )
        return settings.learning_rate * share
