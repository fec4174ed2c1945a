"""What the supervisor writes to the standard input of a process that it starts."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from service.settings import ServeSettings

ENGINE, FRONTEND = "engine", "frontend"


@dataclass(frozen=True, slots=True)
class StartMessage:
    """Settings, and the parameters of one process."""

    settings: ServeSettings
    runtime_dir: str
    name: str
    """Name of the process in the files of its metrics."""
    listener: int | None
    """Inherited file descriptor of the listening socket, for a frontend."""
    heartbeat: int
    """Inherited file descriptor of the heartbeat pipe."""
    restarts: int
    """Number of such processes that have ended."""
    announces: bool
    """The process prints that the service is ready."""

    def to_line(self) -> bytes:
        """Write it as one line of JSON, the API key included."""
        values = self.settings.model_dump(mode="json", exclude={"api_key"})
        key = self.settings.api_key.get_secret_value() if self.settings.api_key is not None else None
        return json.dumps({**asdict(self), "settings": {**values, "api_key": key}}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what `to_line` wrote."""
        values = json.loads(line)
        return cls(**{**values, "settings": ServeSettings(**values["settings"])})
