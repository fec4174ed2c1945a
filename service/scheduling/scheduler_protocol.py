"""Interface of the scheduler, whether it runs in this process or in the engine's, and the models that it runs."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bert.tokenizer import Encoding
from service.engine.models import Floats, Registry
from service.scheduling.fair_queue import NO_LANE, Lane


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
        """Run the encodings; cancel the caller to withdraw them. `deadline` is on `time.monotonic`.

        Raises QueueFullError, with nothing queued, if they do not fit; TooLateError if they cannot meet the deadline;
        DeadlineExceededError once it has passed; EngineError if the engine fails on them; NotReadyError if the
        scheduler closes first.
        """
        ...

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
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
    """Tokens a batch, by model."""
    running_tokens: int = 0
    """Largest number of tokens in the engine at once, beside those that wait."""
    slots: int = 1
    """Batches in the engine at once."""
    changes: "AsyncIterator[ServedModels] | None" = None
    """Yields the served models whenever they change; None if they never do."""
