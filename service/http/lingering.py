"""Sending side of a connection: limited time for the client to read, and a close that does not lose the response.

Closing a socket with unread bytes resets the connection. A client that sends its whole request before it reads, such as
Python's http.client, may then never see the response. uvicorn closes that way.
"""

import asyncio
import select
import time

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.request_body import LAST_PART

MAX_DISCARDED_BYTES = 2**26
"""Maximum bytes of a refused request that are read and discarded before its client reads the response."""
LAST_REQUEST_S = 1.0
"""Seconds that a stopping service waits for a request that may already be on its way."""
INTERIM = b"HTTP/1.1 1"
"""First bytes of an interim response (100 Continue)."""


class LingeringProtocol(HttpToolsProtocol):
    """One connection. Its requests use it as their transport: `write`, `is_closing` and `close`."""

    answer_timeout_s = 30.0
    """Seconds for a client to read what was written; then the connection is dropped."""
    linger_s = 10.0
    """Seconds for a client to stop sending after a response that closes the connection."""
    _in_head = True
    """False while the next byte belongs to a body."""
    _has_begun = False
    """True once the next request has begun to arrive."""
    _is_ending = False
    """True once the connection is being closed."""
    _discarded = 0
    """Bytes received and discarded for the present request."""
    _head: bytes | None = b""
    """Head of the present response, held until its body since uvicorn writes them separately; None once written."""
    _giving_up: asyncio.TimerHandle | None = None
    """Timer that drops a client that does not read, or does not stop sending."""

    def may_receive_more(self) -> bool:
        """Tell whether a request is incomplete."""
        return self._has_begun or not self._in_head

    def on_message_begin(self) -> None:
        """Reset the count of discarded bytes; the limit is for one request."""
        self._discarded = 0
        super().on_message_begin()

    def on_response_complete(self) -> None:
        """Write the head of a response without a body."""
        self._flush_head()
        self._head = b""
        if not self._is_ending:
            super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read."""
        super().pause_writing()
        if not self._is_ending:
            self._await_reading(self.answer_timeout_s)

    def resume_writing(self) -> None:
        """Stop the time limit; the client reads again."""
        super().resume_writing()
        if not self._is_ending:
            self._stop_giving_up()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_giving_up()

    def write(self, data: bytes) -> None:
        """Write part of a response; its head waits for the next part."""
        if self._head is None or data.startswith(INTERIM):
            self.transport.write(data)
        elif self._head:
            self.transport.write(self._head + data)
            self._head = None
        else:
            self._head = data

    def is_closing(self) -> bool:
        """Tell whether the connection is being closed."""
        return self._is_ending or self.transport.is_closing()

    def close(self) -> None:
        """Close after a response.

        If the client may still be sending, only the sending side is closed and further bytes are discarded.
        """
        self._flush_head()
        if not self.may_receive_more():
            self.end()
        elif not self.is_closing():
            self._is_ending = True
            if self.transport.can_write_eof():  # not in TLS, where the client closes once it has the response
                self.transport.write_eof()
            self.transport.resume_reading()
            self._give_up_after(self.linger_s)

    def shutdown(self) -> None:
        """Close the connection after its response, or else with a delay: the client may be sending its next request."""
        if self._is_running():
            super().shutdown()
        else:
            self.loop.call_later(LAST_REQUEST_S, self._close_if_idle)

    def _is_running(self) -> bool:
        """Tell whether a response is incomplete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _is_idle(self) -> bool:
        """Tell whether no request runs or has begun to arrive."""
        return not self._is_running() and self._in_head and not self._has_begun

    def _close_if_idle(self) -> None:
        if self.is_closing() or not self._is_idle():
            return
        unread = select.poll()  # select() takes no descriptor over 1023
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        if unread.poll(0):
            self.loop.call_soon(self._close_if_idle)  # read it first
        else:
            self.end()

    def end(self) -> None:
        """Close the connection once the client has read everything, within the time limit."""
        if not self.is_closing():
            self._is_ending = True
            self.transport.close()
            self._give_up_after(self.answer_timeout_s)

    def discard(self, size: int) -> None:
        """Count discarded bytes; drop the connection past MAX_DISCARDED_BYTES."""
        self._discarded += size
        if self._discarded > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def _flush_head(self) -> None:
        if self._head and not self.is_closing():
            self.transport.write(self._head)
            self._head = None

    def _await_reading(self, seconds: float) -> None:
        self._stop_giving_up()
        self._giving_up = self.loop.call_later(seconds, self._not_reading)

    def _not_reading(self) -> None:
        """Drop a client that does not read, unless it is still sending: many send the whole request before they read."""
        last_part = self.cycle.scope["state"].get(LAST_PART, 0.0)
        left_s = last_part + self.answer_timeout_s - time.monotonic()
        if left_s > 0:
            self._await_reading(left_s)
        else:
            self.transport.abort()

    def _give_up_after(self, seconds: float) -> None:
        self._stop_giving_up()
        self._giving_up = self.loop.call_later(seconds, self.transport.abort)

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
