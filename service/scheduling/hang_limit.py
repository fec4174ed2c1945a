"""How long a batch may be in the engine before it counts as hung. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.scheduling.jobs import Batch
from service.scheduling.throughput import Throughput

SLOWEST_BATCHES = 20
"""Times its slowest batch that an engine may be silent or run one batch before it is hung, if longer than `hung_after_s`."""


@dataclass(frozen=True, slots=True)
class HangLimit:
    """The limit of a batch. It follows the speed of recent batches."""

    hung_after_s: float
    request_timeout_s: float
    throughput: Mapping[str, Throughput]
    budgets: Mapping[str, int]
    """Tokens of a full batch of each model."""
    longest: Mapping[str, int]
    """Tokens of the longest batch of each model."""

    def seconds(self, batch: Batch | None = None) -> float:
        """Return the limit of a batch, or of the engine's silence.

        The time of a long text is extrapolated, and a loaded machine may need far more. It may take as long again as a
        request may wait: its request is then over before the engine is given up, and is not run again.
        """
        slowest_s = max(each.seconds(each.work(self.longest[name])) for name, each in self.throughput.items())
        limit_s = max(self.hung_after_s, SLOWEST_BATCHES * slowest_s)
        return limit_s + self.request_timeout_s if batch and self._has_long_text(batch) else limit_s

    def _has_long_text(self, batch: Batch) -> bool:
        """Tell whether one text of the batch takes longer than a full batch."""
        budget = self.budgets[batch.model]
        return any(work > budget for item in batch.items for work in item.job.work[item.start : item.stop])
