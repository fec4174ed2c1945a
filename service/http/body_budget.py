"""A bound on the bytes of all request bodies that a process holds in memory."""

import threading
from collections.abc import Callable

from service.engine.memory import release_free_memory
from service.http.problems import ProblemError

BODY_SHARE = "body_share"
"""Key in a request's state for its BodyShare."""
FREE_BYTES = 2**14
"""Bytes of each body, and of each connection's buffer, that are not counted. So a small request is never refused here, and
`max_connections` bounds what those hold together."""


def _release_in_thread() -> None:
    threading.Thread(target=release_free_memory, daemon=True).start()


class BodyBudget:
    """Bytes of bodies that the requests and connections of a process hold together."""

    def __init__(self, max_bytes: int, release_memory: Callable[[], object] = _release_in_thread) -> None:
        """`release_memory` is called when most of what was held has been freed, so that the system gets it back."""
        self._max_bytes, self._release_memory = max_bytes, release_memory
        self.held = self._peak = 0
        """Bytes that are held now, and the most since memory was last released."""

    def share(self) -> "BodyShare":
        """Return an empty share for one request or connection."""
        return BodyShare(self)

    def add(self, size: int) -> None:
        """Count `size` more bytes, or fewer if it is negative. Raises the 503 of a budget that would be exceeded."""
        if size > 0 and self.held + size > self._max_bytes:
            detail = (
                f"the bodies of all requests hold {self.held} bytes, and at most {self._max_bytes} may be held "
                "(max_bodies_bytes); try again in 1 s"
            )
            headers = {"Retry-After": "1", "Connection": "close"}
            raise ProblemError(503, "bodies-full", detail, headers=headers, reason="bodies_full")
        self.held += size
        self._peak = max(self._peak, self.held)
        if self._peak >= self._max_bytes // 4 and self.held <= self._peak // 8:
            self._peak = self.held
            self._release_memory()


class BodyShare:
    """Bytes that one request or connection holds. Whoever makes it calls `hold(0)` at the end."""

    __slots__ = ("_budget", "_counted")

    def __init__(self, budget: BodyBudget) -> None:
        """Hold nothing."""
        self._budget, self._counted = budget, 0

    def hold(self, size: int) -> None:
        """Set the bytes that are held in all. Raises the 503 of a full budget; what was held before stays counted."""
        counted = max(0, size - FREE_BYTES)
        if counted != self._counted:
            self._budget.add(counted - self._counted)
            self._counted = counted
