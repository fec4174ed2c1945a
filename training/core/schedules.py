"""Learning rates over a run. A schedule maps the share of the run that is done, 0 to 1, to a share of the peak rate."""

import math
from typing import Literal

RAMP_STAIRS = 16
"""Workers that make batches ahead start again at each new size: so it must not change at each step."""
Schedule = Literal["linear", "google", "one_cycle", "warmup_stable_decay", "constant"]
DecayShape = Literal["linear", "sqrt"]


def rate_share(
    schedule: Schedule,
    done: float,
    warmup: float,
    decay: float = 0.0,
    final: float = 0.0,
    shape: DecayShape = "linear",
) -> float:
    """Return the rate at `done` (0 to 1) of the run, as a share of the peak.

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
