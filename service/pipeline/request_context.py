"""One request's identity, deadline and timing on its way through the service."""

import re
import secrets
import time
from dataclasses import dataclass, field

VALID_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
BEGAN = "began"
"""Key in a request's state under which the server stores the arrival of its first byte, on `time.monotonic`."""
PHASES = ("tokenize", "queue", "inference", "decode")


@dataclass(slots=True)
class RequestContext:
    """Filled in on the way; the middleware turns it into headers, metrics and a log line."""

    request_id: str
    endpoint: str
    received: float
    """Arrival of the request's whole head, on `time.monotonic`."""
    timeout_ms: float = 0.0
    model: str = ""
    """Name of the model in use; empty until it is known to exist."""
    began: float = 0.0
    """Arrival of the request's first byte; `received` if the server does not tell."""
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, see PHASES."""

    @property
    def deadline(self) -> float:
        """Return the request's deadline on `time.monotonic`."""
        return self.received + self.timeout_ms / 1000

    def timed(self, phase: str) -> "PhaseTimer":
        """Return a context manager that adds its duration to a phase."""
        return PhaseTimer(self.seconds, phase)

    def server_timing(self) -> str:
        """Return the Server-Timing header: milliseconds by phase, and the total so far."""
        total = time.monotonic() - self.received
        parts = [f"{phase};dur={1000 * self.seconds[phase]:.3f}" for phase in PHASES if phase in self.seconds]
        return ", ".join([*parts, f"total;dur={1000 * total:.3f}"])


class PhaseTimer:
    """A block whose duration is added to a phase; a class because a generator takes three times as long."""

    __slots__ = ("_phase", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], phase: str) -> None:
        """`seconds` are those of all phases."""
        self._seconds, self._phase = seconds, phase

    def __enter__(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        spent = time.perf_counter() - self._start
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent


def choose_request_id(sent: str | None) -> str:
    """Return the client's id if it is safe in headers and logs, else a new one."""
    return sent if sent and VALID_ID.fullmatch(sent) else secrets.token_hex(8)
