"""The service with tiny bundles, and both clients behind one interface: each test runs with either."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_client import AsyncClient, Client
from tests.support.live import Live, serving
from tests.support.tiny import write_tiny_bundles

MakeClient = Callable[..., Any]
"""Makes a client, closed at the end of the test, from the arguments of Client."""


class Blocking:
    """An AsyncClient whose methods wait, on an event loop of its own."""

    def __init__(self, *url: Any, **arguments: Any) -> None:
        self.client = AsyncClient(*url, **arguments)  # may raise, and then no thread is left behind
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.wait(getattr(self.client, name)(*args, **options))

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        results: Any = self.client.stream(*args, **options)
        try:
            while True:
                yield self.wait(anext(results))
        except StopAsyncIteration:
            pass
        finally:
            self.wait(results.aclose())

    def close(self) -> None:
        self.wait(self.client.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny bundles, one for each kind of task."""
    folder = tmp_path_factory.mktemp("bundles")
    write_tiny_bundles(folder)
    return folder


@pytest.fixture(scope="module")
def live(bundles: Path) -> Iterator[Live]:
    """A service with all tiny bundles; "mood" answers /classify by default."""
    limits: dict[str, Any] = {"max_queue_tokens": 4_096, "max_texts_per_request": 64}
    with serving(bundles=[bundles], default_models={"classification": "mood"}, **limits) as running:
        yield running


@pytest.fixture(params=[Client, Blocking], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """Make clients of one kind."""
    made = list[Any]()

    def make(*url: Any, **arguments: Any) -> Any:
        if request.param is Client:
            arguments.pop("max_concurrency", None)  # it sends one request at a time
        made.append(request.param(*url, **arguments))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(make: MakeClient, live: Live) -> Any:
    """A client that sends seven texts at a time."""
    return make(live.url, batch_size=7)
