"""An engine worker in this process, and the frontend's end of a connection to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bert.bundle import read_bundle
from bert.errors import ServiceError
from bert.tokenizer import Tokenizer
from service.engine.models import ID_DIGITS
from service.settings import ServeSettings
from service.workers.engine_process import EngineWorker
from service.workers.messages import (
    Connection,
    Done,
    Failed,
    Message,
    Submit,
)
from service.workers.runtime_dir import SOCKET

NEVER = float("inf")


class Frontend:
    """A connection to the engine process, and what came."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.connection = Connection(lambda _, message: self.got.append(message), lambda _: None)

    async def answer(self, key: int) -> Done | ServiceError:
        """Wait for the answer to a request."""
        answers: list[Done | Failed] = []
        while not answers:
            await asyncio.sleep(0.001)
            answers = [m for m in self.got if isinstance(m, Done | Failed) and m.key == key]
        (answer,) = answers
        return answer if isinstance(answer, Done) else answer.error()


class Service:
    """An engine server in this process."""

    def __init__(self, folder: Path, bundle: Path, max_queue_tokens: int | None = None) -> None:
        self.folder = folder
        settings = ServeSettings(
            bundles=[bundle], engine_slots=1, batch_tokens=128, max_queue_tokens=max_queue_tokens
        )
        self.server = EngineWorker(settings, folder)
        manifest = read_bundle(bundle).manifest
        self.model = f"{manifest.name}@{manifest.sha256[:ID_DIGITS]}"
        tokenizer = Tokenizer.load(read_bundle(bundle).tokenizer_path)
        self.texts = [
            tokenizer.single(text) for text in tokenizer.pieces(["a film", "dull", "paris is long"])
        ]

    def request(self, key: int, *, model: str = "", deadline: float = NEVER) -> Submit:
        return Submit.of(key, model or self.model, "classification", deadline, self.texts)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Frontend]:
        frontend = Frontend()
        loop, path = asyncio.get_running_loop(), str(self.folder / SOCKET)
        await loop.create_unix_connection(lambda: frontend.connection, path)
        try:
            yield frontend
        finally:
            frontend.connection.close()

    def run(self, scenario: Callable[[Frontend], Awaitable[None]]) -> None:
        """Start it, connect, and end it after the scenario; nothing of a request may be left."""

        async def main() -> None:
            ended = asyncio.Event()
            running = asyncio.create_task(self.server.run(ended))
            while not (self.folder / SOCKET).exists():
                await asyncio.sleep(0.005)
            async with asyncio.timeout(20), self.connected() as frontend:
                await scenario(frontend)
                while any(self.server._tasks.values()):
                    await asyncio.sleep(0.001)
            ended.set()
            await running

        asyncio.run(main())
