"""The sending side of a connection: clients have bounded time to read, and see the last response before it closes.

A socket that is closed with unread bytes resets the connection, and a client that sends its whole request before it reads,
as Python's http.client, may never see the response. uvicorn closes so.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_DISCARDED_BYTES = 2**26
"""Bytes of a request that are read and discarded so that its client comes to read the response."""
INTERIM = b"HTTP/1.1 1"
"""First bytes of a response that only tells the client to go on."""


class LingeringProtocol(HttpToolsProtocol):
    """One connection; its requests have it as their transport: for `write`, `is_closing` and `close`."""

    answer_timeout_s = 30.0
    """Time in which a client must take what was written for it; then it loses the connection."""
    linger_s = 10.0
    """Time in which a client must stop sending after a response that closes the connection."""
    _is_ending = False
    """True from the moment when the connection is to be closed."""
    _discarded = 0
    """Bytes that were received for nothing."""
    _head: bytes | None = b""
    """Head of the response that is being written, None once it is out: uvicorn writes head and body apart."""
    _giving_up: asyncio.TimerHandle | None = None
    """Ends the wait for a client that does not read, or does not stop sending."""

    def may_receive_more(self) -> bool:
        """Tell whether the client may still be sending something."""
        raise NotImplementedError

    def on_message_begin(self) -> None:
        """Count anew what is received for nothing: the bound is that of one request."""
        self._discarded = 0
        super().on_message_begin()

    def on_response_complete(self) -> None:
        """Write the head of a response without a body."""
        self._flush_head()
        self._head = b""
        if not self._is_ending:
            super().on_response_complete()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read."""
        super().pause_writing()
        if not self._is_ending:
            self._give_up_after(self.answer_timeout_s)

    def resume_writing(self) -> None:
        """Stop waiting: the client reads."""
        super().resume_writing()
        if not self._is_ending:
            self._stop_giving_up()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_giving_up()

    def write(self, data: bytes) -> None:
        """Write a part of a response, its head together with what follows."""
        if self._head is None or data.startswith(INTERIM):
            self.transport.write(data)
        elif self._head:
            self.transport.write(self._head + data)
            self._head = None
        else:
            self._head = data

    def is_closing(self) -> bool:
        """Tell whether the connection ends."""
        return self._is_ending or self.transport.is_closing()

    def close(self) -> None:
        """End the connection after a response.

        Where the client may still be sending, only the own side is closed; what comes is to be discarded.
        """
        self._flush_head()
        if not self.may_receive_more():
            self.end()
        elif not self.is_closing():
            self._is_ending = True
            self.transport.write_eof()
            self.transport.resume_reading()
            self._give_up_after(self.linger_s)

    def end(self) -> None:
        """Close the connection; what was written has its time to be taken."""
        if not self.is_closing():
            self._is_ending = True
            self.transport.close()
            self._give_up_after(self.answer_timeout_s)

    def discard(self, size: int) -> None:
        """Count what is received for nothing, and end the connection past the bound."""
        self._discarded += size
        if self._discarded > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def _flush_head(self) -> None:
        if self._head and not self.is_closing():
            self.transport.write(self._head)
            self._head = None

    def _give_up_after(self, seconds: float) -> None:
        self._stop_giving_up()
        self._giving_up = self.loop.call_later(seconds, self.transport.abort)

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
