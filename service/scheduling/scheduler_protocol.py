"""Interface of the scheduler, whether it runs in this process or in the engine's, and the models that it runs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bert.tokenizer import Encoding
from service.engine.models import Floats, Registry
from service.scheduling.fair_queue import NO_LANE, Lane

Manage = Callable[[str, str], Awaitable[None]]
"""Takes one of the actions below and a model's name. Raises LoadError, and UnknownModelError for a name without a bundle."""
LOOK_AGAIN, LOAD, UNLOAD, ROLLBACK = "look_again", "load", "unload", "rollback"
"""Actions. To look again concerns all models, and takes no name."""


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The engine's outputs in the order of the encodings, and how long they took."""

    outputs: list[Floats]
    queue_s: float
    """Seconds until the first sequence was in a batch."""
    inference_s: float
    """Seconds from the first batch to the end of the last, including turns of other requests."""


class SchedulerProtocol(Protocol):
    """What the pipeline needs of a scheduler."""

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens that can wait, and so the size of the largest request."""
        ...

    @property
    def engines_ended(self) -> int:
        """Number of engine processes that ended under it; 0 if the engine is in this process."""
        ...

    async def submit(
        self, model: str, encodings: Sequence[Encoding], deadline: float = float("inf"), lane: Lane = NO_LANE
    ) -> SubmitResult:
        """Run the encodings on the model of an id; cancel the caller to withdraw them. `deadline` is on `time.monotonic`.

        Raises ModelReplacedError for a model that has left; QueueFullError, with nothing queued, if they do not fit;
        TooLateError if they cannot meet the deadline; DeadlineExceededError once it has passed; EngineError if the engine
        fails on them; NotReadyError if the scheduler closes first.
        """
        ...

    def suspects(self) -> set[str]:
        """Return the ids of the models whose engine failed several times in a row."""
        ...

    def health_error(self) -> str | None:
        """Return why no model can answer, None if they can."""
        ...

    async def close(self) -> None:
        """Refuse waiting requests, and end."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Models, and the scheduler that runs them."""

    registry: Registry
    scheduler: SchedulerProtocol
    budgets: Mapping[str, int]
    """Tokens a batch, by the model's id."""
    running_tokens: int = 0
    """Largest number of tokens in the engine at once, beside those that wait."""
    slots: int = 1
    """Batches in the engine at once."""
    changes: "AsyncIterator[ServedModels] | None" = None
    """Yields the served models whenever they change. Its consumer asks for the next once it has taken the last over."""
    manage: "Manage | None" = None
    """Loads, unloads or brings back a model."""
