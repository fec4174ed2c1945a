import asyncio
import random
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from service.http.streams import spool
from service.http.streams.spool import Spool

FILE_BYTES = 2**20


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(within_time())


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_is_read_in_order(seed: int) -> None:
    """Sizes and turns are such that memory, file and the ring's end are all met."""
    chance = random.Random(seed)
    sent = [chance.randbytes(chance.choice((1, 1000, 70_000, 300_000))) for _ in range(60)]

    async def scenario() -> None:
        queue, found = Spool(FILE_BYTES), bytearray()

        async def write() -> None:
            for data in sent:
                await queue.write(data)
                if chance.random() < 0.2:
                    await asyncio.sleep(0.002)
            queue.end()

        writing = asyncio.create_task(write())
        while data := await queue.read():
            found += data
            if chance.random() < 0.1:
                await asyncio.sleep(0.002)
        await writing
        assert found == b"".join(sent)
        queue.close()

    run(scenario())


def test_a_writer_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MEMORY_BYTES", 0)

    async def scenario() -> None:
        queue = Spool(FILE_BYTES)
        await queue.write(bytes(FILE_BYTES))
        writing = asyncio.create_task(queue.write(b"more"))
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert queue.is_full
        await queue.read()
        await writing
        while not queue.is_empty:
            await queue.read()
        await queue.write(b"more")
        assert not queue.is_full
        queue.close()

    run(scenario())


def test_closing_releases_writer_and_reader_and_removes_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def scenario() -> None:
        queue = Spool(FILE_BYTES)
        await queue.write(bytes(FILE_BYTES))
        writing = asyncio.create_task(queue.write(bytes(FILE_BYTES)))
        await asyncio.sleep(0.01)
        queue.close()
        await writing
        assert await queue.read() == b""
        await queue.write(b"dropped")
        assert await queue.read() == b""

    run(scenario())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    async def scenario() -> None:
        queue = Spool(FILE_BYTES)
        with pytest.raises(OSError):
            await queue.write(bytes(FILE_BYTES))
        queue.close()

    run(scenario())
