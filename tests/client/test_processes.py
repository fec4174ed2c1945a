"""Clients in other processes and event loops than they were made in, and their errors on the way back."""

import asyncio
import copy
import gc
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from bert_client import (
    AsyncClient,
    BertError,
    Classification,
    Client,
    FieldError,
    InvalidRequestError,
    InvalidResponseError,
    ModelLeftOutError,
    NotReadyError,
    RequestTimeoutError,
    UnreachableError,
)
from tests.client.conftest import MakeClient
from tests.support.live import Live
from tests.support.scripted import Scripted, scripted


def in_a_fork(work: Callable[[], object]) -> Any:
    """Return the result of `work`, or its error, in a child that has a copy of this process's memory."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        try:
            theirs.send(work())
        except Exception as error:
            theirs.send(error)

    process = context.Process(target=child)
    process.start()
    theirs.close()
    with ours:
        result = ours.recv() if ours.poll(30) else None
    process.join(10)
    return result


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_has_connections_of_its_own() -> None:
    good = Scripted(body={"model": "x", "results": [{"tokens": []}], "usage": {"tokens": 3}})
    with scripted(good) as script:
        with Client(script.url) as client:
            for _ in range(2):
                assert client.tokenize("before") == []
            for _ in range(3):
                assert in_a_fork(lambda: client.tokenize("a")) == []
            assert client.tokenize("after") == []
            assert (len(script.requests), len(script.ports)) == (6, 4)
        assert "closed" in str(in_a_fork(lambda: client.tokenize("a")))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_http_client_of_one_s_own_stays_in_its_process(live: Live) -> None:
    with httpx2.Client() as http:
        client = Client(live.url, http_client=http)
        assert in_a_fork(lambda: client.tokenize("a")) == client.tokenize(
            "a"
        )  # no connection before the fork
        error = in_a_fork(lambda: client.tokenize("a"))
    assert isinstance(error, BertError) and "another process" in str(error)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections of a loop that is closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_goes_on_in_another_event_loop(live: Live) -> None:
    client = AsyncClient(live.url)
    first, second = (asyncio.run(client.classify("a film")) for _ in range(2))
    assert first == second
    asyncio.run(client.aclose())
    own = AsyncClient(live.url, http_client=httpx2.AsyncClient())
    asyncio.run(own.classify("a film"))
    with pytest.raises(BertError, match="event loop"):
        asyncio.run(own.classify("a film"))
    del client, own
    gc.collect()  # so that their warnings come while they are ignored


def test_a_client_that_waits_works_inside_an_event_loop(live: Live) -> None:
    async def inside() -> list[Classification]:
        with Client(live.url) as client:
            return [client.classify("a film"), *client.stream("classify", ["a film"])]

    first, second = asyncio.run(inside())
    assert first == second


def test_a_closed_client_says_so(make: MakeClient, live: Live) -> None:
    with Client(live.url) as client:
        pass
    with pytest.raises(BertError, match="this client is closed"):
        client.classify("a")

    async def closed() -> None:
        async with AsyncClient(live.url) as client:
            pass
        await client.ready()

    with pytest.raises(BertError, match="this client is closed"):
        asyncio.run(closed())


FIELDS: dict[str, Any] = {
    "type": "urn:x",
    "title": "x",
    "request_id": "7",
    "errors": (FieldError("text[1]", "too long"),),
    "retry_after": 2.0,
}


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError(422, "why", **FIELDS),
        NotReadyError(503, "why"),
        ModelLeftOutError(503, "why", **FIELDS),
        UnreachableError("why"),
        RequestTimeoutError("why"),
        InvalidResponseError("why"),
        BertError("why"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled_and_copied(
    error: BertError, again: Callable[[BertError], BertError]
) -> None:
    error.attempts, error.items = 3, range(2)
    error.results = [Classification("positive", 1.0, ()), None]
    twin = again(error)
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


def test_an_error_of_the_service_comes_back_from_a_process(live: Live) -> None:
    with (
        scripted(Scripted(500, "")) as script,
        Client(script.url) as client,
        pytest.raises(BertError) as failed,
    ):
        client.classify(["a"])
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
