"""The models that are served, with the scheduler that runs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.engine.loaded_model import LeftOut, Model
from service.scheduling.scheduler_protocol import SchedulerProtocol


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models, the scheduler that runs them, and what a service says about them."""

    models: Sequence[Model]
    scheduler: SchedulerProtocol
    budgets: Mapping[str, int]
    """Tokens a batch, by model."""
    defaults: Mapping[str, str]
    """Task → name of the model that answers where a request names none."""
    left_out: Sequence[LeftOut] = ()
    running_tokens: int = 0
    """Largest number of tokens in the engine at once, beside those that wait."""
    first: str = ""
    """Name of the first bundle, which may be left out."""
