"""Open the listening socket and name its URL."""

import ctypes
import errno
import os
import re
import socket
import ssl
import struct
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from bert.errors import ConfigError, ServiceError
from service.settings import ServeSettings

SO_ATTACH_FILTER = 26
"""Linux's socket option for a filter of packets (socket(7)); Python has no name for it."""
_NO_SYN = (
    (0x30, 0, 0, 13),  # load the byte of the TCP header that holds its flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # only SYN: the first packet of a connection
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # take any other
)
"""Instructions of the filter, each with code, two jumps and operand."""
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
NOT_AFTER = re.compile(rb"(?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d|\x18\x0f(?=\d{14}Z)(..))(\d{12}Z)")
"""The second of a certificate's two times: with a year of two digits up to 2049, of four after that (RFC 5280, 4.1.2.5)."""


def listen(settings: ServeSettings) -> tuple[ServeSettings, list[socket.socket]]:
    """Return a bound socket, and with `admin_port` a second one; and the settings with the port that this one got.

    Raises ServiceError if a port is taken or the address is not local.
    """
    uds = settings.uds
    listeners = [_bound(settings.host, settings.port) if uds is None else _bound_file(uds, settings.uds_mode)]
    if settings.admin_port is not None:
        try:
            listeners.append(_bound(settings.host, settings.admin_port, "admin-port"))
        except ServiceError:
            listeners[0].close()
            raise
        settings = settings.model_copy(update={"admin_port": listeners[1].getsockname()[1]})
    return settings, listeners


def _bound(host: str, port: int, option: str = "port") -> socket.socket:
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ServiceError(
            f"cannot listen on {host} port {port}: {error.strerror}; stop what uses it, or take another with --{option}"
        ) from error
    return listener


def _bound_file(path: Path, mode: str) -> socket.socket:
    """Return a socket bound to a path; one that an ended service left there is removed."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(str(path))
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()
        listener.bind(str(path))
        path.chmod(int(mode, 8))  # before anybody can connect
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot listen on {path}: {error.strerror or error}; take another with --uds"
        ) from error
    return listener


def check_certificate(settings: ServeSettings) -> float:
    """Return the time at which the certificate expires, in seconds since the epoch; 0 for none, or if it does not tell.

    Raises ConfigError if it and its key cannot be used.
    """
    if settings.ssl_certfile is None:
        return 0.0
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password="")
        own = PEM.search(settings.ssl_certfile.read_text("latin-1"))
    except OSError as error:
        raise ConfigError(
            f"ssl_certfile {settings.ssl_certfile}, ssl_keyfile {settings.ssl_keyfile}: {error}"
        ) from None
    found = NOT_AFTER.search(ssl.PEM_cert_to_DER_cert(own[0])) if own else None
    if found is None:
        return 0.0
    time = f"{(found[1] or b'20').decode()}{found[2].decode()}+0000"
    return datetime.strptime(time, "%Y%m%d%H%M%SZ%z").timestamp()


def drop_new_connections(listener: socket.socket) -> None:
    """Drop the first packet of every further connection, in all processes that share the socket; no-op if not Linux.

    Connections that are being made are completed. A client sends the dropped packet again after a second, and is refused
    if the socket is closed by then.
    """
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _NO_SYN))
    with suppress(OSError):  # a kernel without filters
        listener.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(_NO_SYN), ctypes.addressof(code))
        )


def address(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Return the socket's URL on this machine, or unix: and its path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
