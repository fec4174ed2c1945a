"""The listening socket."""

import socket
import sys

import pytest

from service.listener import drop_new_connections


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters what a socket gets")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_was_made_before_is_taken_and_none_begins_after(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        place = listener.getsockname()[:2]
        with socket.create_connection(place, 5) as early:
            drop_new_connections(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(place, 0.2)
            taken, _ = listener.accept()
            with taken:
                early.sendall(b"asked")
                assert taken.recv(10) == b"asked"
                taken.sendall(b"answered")
                assert early.recv(10) == b"answered"
