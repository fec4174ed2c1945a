"""An engine process that a test plays, for the frontend's side of the connection."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from bert.tokenizer import Encoding
from service.scheduling.fair_queue import NO_LANE, Lane
from service.scheduling.scheduler_protocol import SubmitResult
from service.workers.messages import Connection, Done, Hello, Message, Submit
from service.workers.remote_scheduler import RemoteScheduler
from service.workers.runtime_dir import SOCKET

MODEL = "m@v1"
"""Id of the model that requests are for."""


def hello(max_tokens: int, model: str = MODEL, origin: str = "v1") -> Hello:
    return Hello(max_tokens, {model: 64}, {model: "classification"}, {model: origin})


class PlayedEngine:
    """An engine process that answers when the test says so."""

    def __init__(self, folder: Path, max_tokens: int = 100) -> None:
        self.path, self.hello = folder / SOCKET, hello(max_tokens)
        self.got: list[Message] = []
        self.connections: list[Connection] = []

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self.server = await asyncio.get_running_loop().create_unix_server(self.connection, str(self.path))

    def connection(self) -> Connection:
        return Connection(lambda _, message: self.got.append(message), lambda _: None, self.made)

    def made(self, connection: Connection) -> None:
        self.connections.append(connection)
        connection.send(self.hello)

    async def die(self) -> None:
        self.server.close()
        for connection in self.connections:
            connection.close()

    async def requests(self, count: int) -> list[Submit]:
        """Wait for so many requests, and return them."""
        await until(lambda: len(self.submitted) >= count)
        assert len(self.submitted) == count
        return self.submitted

    @property
    def submitted(self) -> list[Submit]:
        return [message for message in self.got if isinstance(message, Submit)]

    def answer(self, request: Submit, value: float) -> None:
        self.connections[-1].send(
            Done.of(request.key, SubmitResult([np.full((1, 1), value, np.float32)], 0.0, 0.0))
        )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def submitted(
    scheduler: RemoteScheduler, tokens: int = 10, lane: Lane = NO_LANE
) -> "asyncio.Task[SubmitResult]":
    ids = np.arange(tokens, dtype=np.int32)
    text = Encoding(ids, ids, np.zeros((tokens, 2), np.int32), ids, ids)
    return asyncio.create_task(scheduler.submit(MODEL, [text], lane=lane))


def value(result: SubmitResult) -> float:
    (output,) = result.outputs
    return float(output[0, 0])


def run(folder: Path, scenario: Callable[[RemoteScheduler], Awaitable[None]]) -> None:
    async def main() -> None:
        scheduler = RemoteScheduler(folder)
        try:
            async with asyncio.timeout(10):
                await scenario(scheduler)
        finally:
            await scheduler.close()
            await asyncio.sleep(0.01)  # for what is closing

    asyncio.run(main())
