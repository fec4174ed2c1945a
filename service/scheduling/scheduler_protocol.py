"""What the pipeline needs of a scheduler, wherever that is: in this process, or in the engine's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bert.tokenizer import Encoding
from service.engine.engine_protocol import Floats


@dataclass(frozen=True, slots=True)
class Result:
    """The engine's outputs in the order of the encodings, and how long they took."""

    outputs: list[Floats]
    queue_s: float
    """Until the first sequence was in a batch."""
    inference_s: float
    """From then until the last sequence was done, turns of others included."""


class SchedulerProtocol(Protocol):
    """What the pipeline needs of a scheduler, in this process or in another."""

    @property
    def max_tokens(self) -> int:
        """Most tokens that can wait: no larger request is taken."""
        ...

    async def submit(
        self, model: str, encodings: Sequence[Encoding], deadline: float = float("inf")
    ) -> Result:
        """Run the encodings; cancel the caller to take them back.

        Raises QueueFullError, with nothing queued, if they do not fit or would be done too late; EngineError if
        the engine fails on them; DeadlineExceededError when the deadline has passed, TooLateError when it
        cannot be met any more; NotReadyError when the scheduler closes first. `deadline` is on `time.monotonic`.
        """
        ...

    def suspects(self) -> set[str]:
        """Return the models whose engine failed several times in a row."""
        ...

    def health_error(self) -> str | None:
        """Return what keeps every model from answering, None if nothing."""
        ...

    async def close(self) -> None:
        """Refuse what still waits, and end."""
        ...
