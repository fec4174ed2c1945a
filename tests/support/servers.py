"""Small HTTP servers whose answers a test decides."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

Respond = Callable[[bytes], Awaitable[tuple[int, bytes]]]
"""Body of a request → status and body of the answer."""


@contextmanager
def http_server(respond: Respond) -> Iterator[str]:
    """Answer POSTs on a thread of its own until the block ends; gives the address."""
    loop = asyncio.new_event_loop()
    # An answer that never comes, to a client that has left: nothing else would keep that task from the collector.
    answering = set[object]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                status, body = await respond(await reader.readexactly(length))
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # the closed connections end
