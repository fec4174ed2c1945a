"""Requests of many lines: sent whole, or part by part while their responses are read."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tests.support.live import Client

TYPE = "application/x-ndjson"


def lines_of(*requests: object) -> bytes:
    """Return requests as lines; bytes are a line as they are."""
    lines = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests)
    return b"".join(line + b"\n" for line in lines)


def answered(body: bytes) -> list[Any]:
    """Return the responses of a body; its last line is whole too."""
    assert not body or body.endswith(b"\n")
    return [json.loads(line) for line in body.splitlines()]


def post_lines(client: Client, path: str, body: bytes, **headers: str) -> list[Any]:
    """Send all lines, and only then read."""
    reply = client.post(path, body, content_type=TYPE, **headers)
    assert (reply.status, reply.headers["content-type"]) == (200, TYPE), reply.body
    return answered(reply.body)


def kinds(responses: Iterable[Any]) -> list[tuple[int, str]]:
    """Return line and type of each problem."""
    return [
        (each["line"], each["type"].removeprefix("urn:bert-serve:")) for each in responses if "type" in each
    ]


def rounded(value: Any) -> Any:
    """Return a response with numbers that do not depend on what else was in the batch."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


@dataclass
class OpenRequest:
    """A request whose body is sent in chunks."""

    connection: HTTPConnection
    response: HTTPResponse | None = None

    def send(self, data: bytes) -> None:
        self.connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.connection.send(b"0\r\n\r\n")

    def begin_reading(self) -> HTTPResponse:
        if self.response is None:
            self.response = self.connection.getresponse()
        return self.response

    def line(self) -> Any:
        """Return the next response."""
        return json.loads(self.begin_reading().readline())

    def rest(self) -> list[Any]:
        """Return all further responses."""
        return answered(self.begin_reading().read())


@contextmanager
def opened(client: Client, path: str, **headers: str) -> Iterator[OpenRequest]:
    """Begin a request of lines; its connection is closed at the block's end."""
    connection = client.connect()
    connection.putrequest("POST", path)
    for name, value in {"content_type": TYPE, "transfer_encoding": "chunked", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    try:
        yield OpenRequest(connection)
    finally:
        connection.close()
