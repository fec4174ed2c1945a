"""Batch size, phase and learning rate by the share of the run that is over: pure functions of the settings."""

import math
from dataclasses import dataclass

from training.pretraining.settings import DecayShape, Phase, PretrainSettings, Schedule

RAMP_STAIRS = 16
"""Workers that make batches ahead start again at each new size: so it must not change at each step."""


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


def rate_share(
    schedule: Schedule,
    done: float,
    warmup: float,
    decay: float = 0.0,
    final: float = 0.0,
    shape: DecayShape = "linear",
) -> float:
    """Return the learning rate at `done` (0 to 1) of the run, as a share of the peak.

    `warmup` and `decay` are shares of the run, `final` is the share of the peak that the run ends at.

    - linear: up over the warm-up, then straight down to the end (fairseq and transformers);
    - google: a straight line down from the first step to the end, which the warm-up's line replaces at the start, so the
      rate drops from the peak to the line where the warm-up ends (google-research/bert, `optimization.py`);
    - one_cycle: up over the warm-up, then half a cosine down (Smith & Topin 2017; Geiping & Goldstein 2022);
    - warmup_stable_decay: up, flat, and down over the last `decay` of the run (Hu et al. 2024, arXiv 2404.06395), straight
      or as 1 - sqrt, which falls fast at first (Hägele et al. 2024, arXiv 2405.18392; ModernBERT);
    - constant: up, then flat.
    """
    if done < warmup:
        return done / warmup
    rest = min(1.0, (done - warmup) / max(1e-12, 1.0 - warmup))
    if schedule == "constant":
        return 1.0
    if schedule == "one_cycle":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * rest))
    if schedule == "warmup_stable_decay":
        left = max(0.0, min(1.0, (1.0 - done) / decay)) if decay > 0 else 1.0
        return final + (1.0 - final) * (left if shape == "linear" else 1.0 - math.sqrt(1.0 - left))
    if schedule == "google":
        rest = min(1.0, done)
    return final + (1.0 - final) * (1.0 - rest)


def ramp(done: float, start: int, end: int, share: float) -> int:
    """Return the batch size at `done` of the run: from `start` to `end` over the first `share`, in RAMP_STAIRS stairs."""
    if share <= 0 or done >= share:
        return end
    return round(start + (end - start) * math.floor(RAMP_STAIRS * done / share) / RAMP_STAIRS)
