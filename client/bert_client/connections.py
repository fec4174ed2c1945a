"""The HTTP client of a `Client`: made anew where the connections of the old one cannot be used."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import httpx2

from bert_client.errors import BertError


class Bounded(httpx2.SyncByteStream):
    """The body of a response, cut off at a time of `time.monotonic()`: a read timeout alone restarts with every byte."""

    def __init__(self, stream: Any, end: float) -> None:
        self.stream, self.end = stream, end

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.stream:
            if time.monotonic() > self.end:
                raise httpx2.ReadTimeout("the answer is not complete")
            yield chunk

    def close(self) -> None:
        """Close the connection, or give it back."""
        self.stream.close()


H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)


class Connections(Generic[H]):
    """Connections that belong to one home: a process, or a process and its event loop.

    Two processes that share a socket after a fork would read each other's answers.
    """

    def __init__(self, make: Callable[[], H], given: H | None) -> None:
        """Use the caller's own HTTP client, or make one; raises BertError where a proxy's package is missing."""
        self._make: Callable[[], H] = make
        self._given, self._closed = given is not None, False
        try:
            self._current: tuple[object, H] = (None, given or make())
        except ImportError as error:
            raise BertError(f"no HTTP client could be made: {error}") from error

    def use(self, home: object) -> H:
        """Return the HTTP client for requests from `home`, a new one where that has changed.

        Raises BertError after `close`, and where the home of the caller's own HTTP client has changed.
        """
        before, http = self._current
        if self._closed or http.is_closed:
            raise BertError("this client is closed: make a new one")
        if before is not None and before != home:
            if self._given:
                raise BertError(
                    "http_client was used in another process or event loop: make one, and a client, in each"
                )
            http = self._make()
        self._current = (home, http)
        return http

    def close(self, home: object) -> H | None:
        """Refuse further requests; returns the HTTP client that the caller has to close, if any."""
        self._closed = True
        before, http = self._current
        return http if not self._given and before in (None, home) else None
