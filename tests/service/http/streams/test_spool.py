import asyncio
import random
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.http.streams import spool
from service.http.streams.spool import BLOCK_BYTES, Spool, SpoolFile

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
        queue, found = Spool(SpoolFile(FILE_BYTES)), bytearray()

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
        queue = Spool(SpoolFile(FILE_BYTES))
        await queue.write(bytes(FILE_BYTES // 2 + BLOCK_BYTES))
        assert not queue.is_full
        writing = asyncio.create_task(queue.write(b"more"))
        while not queue.is_full:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not writing.done()
        await queue.read()
        await writing
        for _ in range(FILE_BYTES // 2 // BLOCK_BYTES):
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
        queue = Spool(SpoolFile(FILE_BYTES))
        await queue.write(bytes(FILE_BYTES // 2))
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
        queue = Spool(SpoolFile(FILE_BYTES))
        with pytest.raises(OSError):
            await queue.write(bytes(FILE_BYTES))
        queue.close()

    run(scenario())


def test_streams_share_one_file_and_each_finds_room() -> None:
    async def scenario() -> None:
        file = SpoolFile(FILE_BYTES)
        queues = [Spool(file) for _ in range(3)]
        writing = [asyncio.create_task(queue.write(bytes(FILE_BYTES * 2))) for queue in queues]
        while not all(held := [len(queue._blocks) for queue in queues]):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        held = [len(queue._blocks) for queue in queues]
        assert sum(held) <= FILE_BYTES // BLOCK_BYTES
        for queue in queues[1:]:
            queue.close()
        for _ in range(2 * FILE_BYTES // BLOCK_BYTES):
            assert await queues[0].read() == bytes(BLOCK_BYTES)
        await asyncio.gather(*writing)
        queues[0].close()
        assert file._file is None

    run(scenario())


def test_streams_do_not_mix_when_one_is_cancelled() -> None:
    """The block of a write that is cancelled may not be given to another while the thread still writes."""
    chance = random.Random(1)

    async def scenario() -> None:
        file = SpoolFile(FILE_BYTES)
        kept, sent = Spool(file), chance.randbytes(FILE_BYTES // 2)
        for start in range(0, len(sent), 20_000):
            other = Spool(file)
            writing = asyncio.create_task(other.write(bytes(FILE_BYTES // 2)))
            await asyncio.sleep(chance.random() / 1000)
            writing.cancel()
            await asyncio.wait([writing])
            other.close()
            await kept.write(sent[start : start + 20_000])
        kept.end()
        found = bytearray()
        while data := await kept.read():
            found += data
        assert found == sent
        kept.close()

    run(scenario())


def test_a_nearly_full_disk_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last pages belong to the metrics: without them the process dies."""
    usage = SimpleNamespace(total=2**30, free=spool.RESERVE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    async def scenario() -> None:
        file = SpoolFile(FILE_BYTES)
        with pytest.raises(OSError, match="No space left"):
            await Spool(file).write(bytes(FILE_BYTES // 2))
        usage.free += 1
        queue = Spool(file)
        await queue.write(bytes(FILE_BYTES // 2))
        queue.close()

    run(scenario())
