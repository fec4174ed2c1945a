"""Messages between two ends of a Unix socket: whole, in order, however the bytes arrive."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from service.workers.messages import Cancel, Connection, Done, Failed, Health, Hello, Message, Submit

SENT: list[Message] = [
    Hello(16_384, {"mood": 128}, {"mood": "classification"}, {"mood": "v1"}),
    Cancel(1),
    Submit(2, "mood", 1.5, [1], 2, bytes(8)),
    Health([], {}),
    Failed(2, "EngineError", ("it failed",), {}),
    Done(3, [1], (3,), bytes(12), 0.1, 0.2),
]
LARGE = Done(4, [2**22], (2,), random.Random(1).randbytes(2**25), 0.1, 0.2)
Run = Callable[[Awaitable[None]], None]


@dataclass
class End:
    """A connection, and what came of it."""

    got: list[Message] = field(default_factory=list)
    made: int = 0
    lost: int = 0
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = Connection(self._received, self._lost, self._made)

    def _received(self, connection: Connection, message: Message) -> None:
        assert connection is self.connection and not self.lost
        self.got.append(message)

    def _lost(self, connection: Connection) -> None:
        assert connection is self.connection
        self.lost += 1

    def _made(self, connection: Connection) -> None:
        assert connection is self.connection
        self.made += 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, socket.socket]]:
    """A connection, and the bare other end of its connection."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    other.setblocking(False)
    end = End()
    await asyncio.get_running_loop().create_unix_connection(lambda: end.connection, sock=one)
    with other:
        yield end, other
        end.connection.close()
    await until(lambda: end.lost == 1)


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[End, End]]:
    """Two connections, one of a server."""
    here, there, loop = End(), End(), asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: there.connection, str(folder / "s"))
    await loop.create_unix_connection(lambda: here.connection, str(folder / "s"))
    await until(lambda: there.made == 1)
    try:
        yield here, there
    finally:
        here.connection.close()
        await until(lambda: here.lost == there.lost == 1)
        server.close()


async def written(*messages: Message) -> bytes:
    """Return the bytes that leave a connection."""
    async with pair() as (end, other):
        for message in messages:
            end.connection.send(message)
        end.connection.close()
        return await read_all(other)


async def read_all(other: socket.socket) -> bytes:
    data = b""
    while part := await asyncio.get_running_loop().sock_recv(other, 65_536):
        data += part
    return data


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    runner: Run = request.param
    return runner


def test_bytes_may_arrive_cut_at_any_place() -> None:
    stream = asyncio.run(written(*SENT))
    for cut in range(len(stream) + 1):
        end = End()
        end.connection.data_received(stream[:cut])
        assert end.got == SENT[: len(end.got)]
        end.connection.data_received(stream[cut:])
        assert end.got == SENT


def test_bytes_may_arrive_one_by_one() -> None:
    end = End()
    for byte in asyncio.run(written(*SENT)):
        end.connection.data_received(bytes([byte]))
    assert end.got == SENT


def test_a_message_is_handed_over_with_its_last_byte() -> None:
    stream, end = asyncio.run(written(SENT[0])), End()
    end.connection.data_received(stream[:-1])
    assert end.got == []
    end.connection.data_received(stream[-1:])
    assert end.got == [SENT[0]]


def test_several_in_one_packet_are_several(run: Run) -> None:
    async def scenario() -> None:
        stream = await written(*SENT)
        async with pair() as (end, other):
            await asyncio.get_running_loop().sock_sendall(other, stream * 3)
            await until(lambda: len(end.got) == 3 * len(SENT))
            assert end.got == SENT * 3

    run(scenario())


def test_packets_end_where_they_will(run: Run) -> None:
    async def scenario() -> None:
        stream, chance = await written(*SENT * 20), random.Random(5)
        async with pair() as (end, other):
            while stream:
                cut = chance.randint(1, 200)
                await asyncio.get_running_loop().sock_sendall(other, stream[:cut])
                stream = stream[cut:]
                await asyncio.sleep(0)
            await until(lambda: len(end.got) == 20 * len(SENT))
            assert end.got == SENT * 20

    run(scenario())


def test_thousands_both_ways_keep_their_order(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as (here, there):
            for key in range(3000):
                here.connection.send(Cancel(key))
                there.connection.send(Cancel(-key))
                if key % 700 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(here.got) == len(there.got) == 3000)
            assert there.got == [Cancel(key) for key in range(3000)]
            assert here.got == [Cancel(-key) for key in range(3000)]

    run(scenario())


def test_a_large_message_is_carried_and_those_after_it_follow(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as (here, there):
            for end in (here, there):
                end.connection.send(LARGE)
                end.connection.send(Cancel(1))
            await until(lambda: len(here.got) == len(there.got) == 2)
            assert here.got == there.got == [LARGE, Cancel(1)]

    run(scenario())


def test_what_was_sent_leaves_before_it_is_closed(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as (here, there):
            here.connection.send(LARGE)
            here.connection.close()
            await until(lambda: there.lost == 1)
            assert there.got == [LARGE]

    run(scenario())


def test_nothing_is_sent_on_a_lost_connection(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as (here, there):
            here.connection.close()
            await until(lambda: there.lost == 1)
            for end in (here, there):
                end.connection.send(Cancel(1))
                end.connection.close()
            await asyncio.sleep(0.01)
            assert (here.got, there.got, here.lost, there.lost) == ([], [], 1, 1)

    run(scenario())


def test_half_a_message_of_one_that_died_is_no_message(run: Run) -> None:
    async def scenario() -> None:
        stream = await written(*SENT)
        async with pair() as (end, other):
            await asyncio.get_running_loop().sock_sendall(other, stream[:-1])
            other.close()
            await until(lambda: end.lost == 1)
            assert end.got == SENT[:-1]

    run(scenario())
