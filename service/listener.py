"""Open the listening socket and name its URL."""

import socket

from bert.errors import ServiceError
from service.settings import ServeSettings


def listen(settings: ServeSettings) -> socket.socket:
    """Return a bound socket; raises ServiceError if the port is taken or the address is not local."""
    listener = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ServiceError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; stop what uses it, or take "
            "another with --port"
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    """Return the socket's URL on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
