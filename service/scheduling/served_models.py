"""The models that are served, with the scheduler that runs them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from service.engine.model_registry import Registry
from service.scheduling.scheduler_protocol import SchedulerProtocol


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models, and the scheduler that runs them."""

    registry: Registry
    scheduler: SchedulerProtocol
    budgets: Mapping[str, int]
    """Tokens a batch, by model."""
    running_tokens: int = 0
    """Largest number of tokens in the engine at once, beside those that wait."""
    slots: int = 1
    """Batches in the engine at once."""
    changes: "AsyncIterator[ServedModels] | None" = None
    """Yields the served models whenever they change; None if they never do."""
