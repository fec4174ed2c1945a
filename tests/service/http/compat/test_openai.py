"""OpenAI's official client, on /v1."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from bert.errors import DeadlineExceededError, NotReadyError, QueueFullError
from tests.service.http.compat.conftest import KEY
from tests.support.live import Live

openai = pytest.importorskip(
    "openai", reason="the client `openai` is not installed: `make clients` installs it"
)
Client = Callable[..., Any]
FULL = QueueFullError(100, 100, 0.5)


@pytest.fixture
def client() -> Iterator[Callable[..., Any]]:
    """Make clients of a service; they are closed at the end."""
    with ExitStack() as opened:

        def make(live: Live, **options: Any) -> Any:
            given = {"api_key": KEY, "max_retries": 0} | options
            return opened.enter_context(openai.OpenAI(base_url=f"{live.url}/v1", **given))

        yield make


def test_embeddings_are_those_of_embed(client: Client, wired: Live) -> None:
    own = wired.post("/embed", {"text": ["a film", "munich"]}).json
    found = client(wired).embeddings.create(model="meaning", input=["a film", "munich"])
    vectors = [item.embedding for item in found.data]
    assert [item.index for item in found.data] == [0, 1]
    np.testing.assert_allclose(vectors, [each["embedding"] for each in own["results"]], atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens == own["usage"]["tokens"]
    assert found.model == "meaning"


def test_float_and_base64_are_the_same_vector(client: Client, wired: Live) -> None:
    asked = {"model": "meaning", "input": "a"}
    by_default = client(wired).embeddings.create(**asked).data[0].embedding
    floats = client(wired).embeddings.create(**asked, encoding_format="float").data[0].embedding
    text = client(wired).embeddings.create(**asked, encoding_format="base64").data[0].embedding
    assert floats == pytest.approx(by_default, abs=1e-7)
    assert isinstance(text, str) and len(text) == 4 * -(-4 * len(floats) // 3)


def test_dimensions_are_the_first_numbers_of_length_one(client: Client, wired: Live) -> None:
    def vector(dimensions: int) -> np.ndarray:
        found = client(wired).embeddings.create(model="meaning", input="a", dimensions=dimensions)
        return np.array(found.data[0].embedding)

    first = vector(32)[:8]
    np.testing.assert_allclose(vector(8), first / np.linalg.norm(first), atol=1e-6)
    for other, rule in (
        (33, "is 33, and model 'meaning' gives 32"),
        (1000, "is 1000, and model 'meaning' gives 32"),
        (0, "a whole number of at least 1, not 0"),
    ):
        with pytest.raises(openai.BadRequestError, match=rule) as caught:
            client(wired).embeddings.create(model="meaning", input="a", dimensions=other)
        assert caught.value.body["param"] == "dimensions"


@pytest.mark.parametrize("wrong", [[[1, 2], [3]], [1, 2], [], "", ["a", ""]])
def test_what_is_no_text_is_a_bad_request(client: Client, wired: Live, wrong: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client(wired).embeddings.create(model="meaning", input=wrong)
    assert caught.value.body["param"].startswith("input")
    assert ("strings" in str(caught.value)) == (wrong in ([[1, 2], [3]], [1, 2]))


def test_unknown_models_and_those_for_other_tasks_are_refused(client: Client, wired: Live) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client(wired).embeddings.create(model="nope", input="a")
    assert caught.value.code == "model_not_found" and "meaning" in str(caught.value)
    with pytest.raises(openai.BadRequestError, match="is for ner"):
        client(wired).embeddings.create(model="names", input="a")


def test_long_texts_are_refused_unless_truncate(client: Client, wired: Live) -> None:
    long = "the film was warm " * 100
    with pytest.raises(openai.BadRequestError, match="402 tokens and the model reads at most 32"):
        client(wired).embeddings.create(model="meaning", input=long)
    found = client(wired).embeddings.create(model="meaning", input=long, extra_body={"truncate": True})
    assert found.usage.prompt_tokens == 32


def test_models_are_listed(client: Client, wired: Live) -> None:
    names = [model["name"] for model in wired.get("/models").json["models"]]
    assert [model.id for model in client(wired).models.list()] == names
    assert client(wired).models.retrieve("meaning").id == "meaning"
    with pytest.raises(openai.NotFoundError):
        client(wired).models.retrieve("nope")


def test_a_full_queue_is_a_rate_limit_that_the_client_waits_for(
    client: Client, wired: Live, failing: Callable[..., None]
) -> None:
    failing(FULL, times=1)
    with pytest.raises(openai.RateLimitError) as caught:
        client(wired).embeddings.create(model="meaning", input="a")
    assert caught.value.response.headers["retry-after"] == "1" and "are waiting" in str(caught.value)
    failing(FULL, times=1)
    began = time.monotonic()
    assert client(wired, max_retries=2).embeddings.create(model="meaning", input="a").data
    assert time.monotonic() - began >= 0.9


def test_errors_of_the_service_have_their_own_classes(
    client: Client, wired: Live, failing: Callable[..., None]
) -> None:
    failing(DeadlineExceededError(200), times=1)
    with pytest.raises(openai.InternalServerError, match="no answer within 30000 ms") as caught:
        client(wired, max_retries=2).embeddings.create(
            model="meaning", input="a"
        )  # a deadline is not tried again
    assert caught.value.status_code == 504
    failing(NotReadyError("the service is stopping"), times=1)
    with pytest.raises(openai.InternalServerError, match="stopping") as caught:
        client(wired).embeddings.create(model="meaning", input="a")
    assert caught.value.status_code == 503 and caught.value.request_id


def test_the_key_is_the_services(client: Client, keyed: Live) -> None:
    assert client(keyed).embeddings.create(model="meaning", input="a").data
    with pytest.raises(openai.AuthenticationError) as caught:
        client(keyed, api_key="no").models.list()
    assert caught.value.code == "invalid_api_key"


def test_many_requests_at_once_keep_their_order(client: Client, wired: Live) -> None:
    texts = [f"film {number}" for number in range(50)]
    alone = client(wired).embeddings.create(model="meaning", input=texts)

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{wired.url}/v1", api_key=KEY) as asynchronous:
            one_each = [asynchronous.embeddings.create(model="meaning", input=text) for text in texts]
            return list(await asyncio.gather(*one_each))

    for together, each in zip(alone.data, asyncio.run(ask()), strict=True):
        np.testing.assert_allclose(together.embedding, each.data[0].embedding, atol=1e-5)
