"""A bound on the work that all streams of a process have in hand at once."""

import asyncio
from collections import deque

BYTES_PER_TOKEN = 4
"""Bytes of a line for each token, about what English has. Its exact tokens are known too late."""
MAX_LINES = 128
"""Most lines in work at once. More that end together would hold the event loop for too long."""


class InFlightLimit:
    """Tokens that streams may have in work, first come first served.

    `max_tokens` should be that of a batch for each engine slot, and of two at least. Then the engine has work at any time,
    and a request beside a stream waits for little more than a batch.
    """

    def __init__(self, max_tokens: int) -> None:
        """Start with nothing in work."""
        self._max_tokens, self._tokens = max(2, max_tokens), 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, line: bytes) -> int:
        """Wait until a line may be worked on; return what to `give_back`."""
        least, most = self._max_tokens // MAX_LINES, self._max_tokens // 2
        # Two lines always fit, so that one is read while the other is in the engine.
        tokens = min(max(len(line) // BYTES_PER_TOKEN, least, 1), most)
        if self._waiting or not self._has_room(tokens):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((tokens, turn))
            try:
                await turn
            except asyncio.CancelledError:
                was_given = turn.done() and not turn.cancelled()
                self._waiting = deque(each for each in self._waiting if each[1] is not turn)
                self.give_back(tokens if was_given else 0)
                raise
        else:
            self._tokens += tokens
        return tokens

    def give_back(self, tokens: int) -> None:
        """Note that a line is done, and let the next ones begin."""
        self._tokens -= tokens
        while self._waiting and self._has_room(self._waiting[0][0]):
            tokens, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._tokens += tokens
                turn.set_result(None)

    def _has_room(self, tokens: int) -> bool:
        return self._tokens + tokens <= self._max_tokens
