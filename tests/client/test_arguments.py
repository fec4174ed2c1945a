"""What the clients refuse before they send anything, and numbers of numpy as options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_client import BertError, UnauthorizedError, UnknownModelError
from tests.client.conftest import MakeClient
from tests.support.live import serving


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:abc",
        "http://[::1",
        "http://",
        "http://localhost:99999",
        "http://localhost?x=1",
        "http://localhost/#x",
    ],
)
def test_a_wrong_url_is_refused_by_name(make: MakeClient, url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as refused:
        make(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 1e300, 0, -1])
def test_a_timeout_is_a_number_of_seconds(make: MakeClient, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be over 0"):
        make("http://localhost", timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be over 0"):
        make("http://localhost").classify("a", timeout=timeout)


@pytest.mark.parametrize("key", ["schlüssel", "geheim\nX-Other: 1", "geheim "])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(make: MakeClient, key: str) -> None:
    with pytest.raises(ValueError, match="api_key must be printable ASCII") as refused:
        make("http://localhost", api_key=key)
    assert "geheim" not in str(refused.value) and "schl" not in str(refused.value)


def test_a_proxy_without_its_package_is_named(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(BertError, match="socksio"):
        make("http://localhost")


def test_numbers_of_numpy_are_numbers(client: Any) -> None:
    assert client.classify("a film", top_k=np.int64(1)).scores
    assert client.classify("a film", threshold=np.float32(0.5)).label
    assert client.embed("a film", dimensions=np.int64(8)).shape == (8,)
    assert len(client.similarity("a", ["b", "c"], top_k=np.int64(1))) == 1


def test_a_model_that_cannot_have_its_name_is_unknown(client: Any) -> None:
    with pytest.raises(UnknownModelError, match="ud800"):
        client.ready("\ud800")


CALLS: dict[str, tuple[str, ...]] = {
    "classify": ("text",),
    "ner": ("text",),
    "embed": ("text",),
    "tokenize": ("text",),
    "fill_mask": ("text",),
    "qa": ("question", "context"),
    "similarity": ("text", "candidates"),
    "rerank": ("query", "candidates"),
    "multiple_choice": ("prompt", "choices"),
}
"""Method → its text fields, of which the last is given a wrong value, and then the first."""
NO_TEXT = [
    (3, "not 3 (int)"),
    (None, "not None (NoneType)"),
    (b"a film", "not b'a film' (bytes)"),
    ({"a": "film"}, "not {'a': 'film'} (dict)"),
    ({"a"}, "not {'a'} (set)"),
]


@pytest.mark.parametrize(("value", "named"), NO_TEXT, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("method", CALLS)
def test_what_is_no_text_is_refused_with_its_field_and_value(
    make: MakeClient, method: str, value: Any, named: str
) -> None:
    asked = getattr(make("http://127.0.0.1:9", max_retries=0), method)
    fields = CALLS[method]
    for wrong in fields:
        good: dict[str, Any] = {
            field: ["a", "b"] if field in ("candidates", "choices") else "a" for field in fields
        }
        with pytest.raises(TypeError, match=rf"^{wrong} must be a ") as refused:
            asked(**{**good, wrong: value})
        assert str(refused.value).endswith(named)


@pytest.mark.parametrize("method", CALLS)
def test_an_item_that_is_no_text_is_refused_with_its_place(make: MakeClient, method: str) -> None:
    asked = getattr(make("http://127.0.0.1:9", max_retries=0), method)
    *before, last = CALLS[method]
    for wrong, named in [(3, "3 (int)"), (None, "None (NoneType)"), (b"x", "b'x' (bytes)")]:
        with pytest.raises(TypeError) as refused:
            asked(*(["a"] if field != "query" else "a" for field in before), ["a", wrong])
        assert str(refused.value) == f"{last}[1] must be a string, not {named}"


def test_texts_of_any_sequence_are_read(client: Any) -> None:
    texts = np.array(["a film", "who"])
    assert client.embed(texts).shape == client.embed(text for text in texts).shape == (2, 32)


@pytest.mark.parametrize(
    ("task", "items", "named"),
    [
        ("classify", ["a", 3], "items[1] must be a string or (text, text_pair), not 3 (int)"),
        ("classify", [("a", "b"), "cd"], "items[1] must be (text, text_pair) like items[0], not 'cd' (str)"),
        ("ner", ["a", ("a", "b")], "items[1] must be a string, not ('a', 'b') (tuple)"),
        ("embed", [b"a"], "items[0] must be a string, not b'a' (bytes)"),
        ("qa", [("a", "b"), ("a", None)], "items[1] must be (question, context), not ('a', None) (tuple)"),
        ("qa", ["ab"], "items[0] must be (question, context), not 'ab' (str)"),
        (
            "multiple_choice",
            [("a", [1, 2])],
            "items[0] must be (prompt, list of choices), not ('a', [1, 2]) (tuple)",
        ),
    ],
)
def test_an_item_of_a_stream_is_refused_with_its_place(
    make: MakeClient, task: str, items: list[Any], named: str
) -> None:
    with pytest.raises(TypeError) as refused:
        list(make("http://127.0.0.1:9", max_retries=0).stream(task, items))
    assert str(refused.value) == named


def test_the_address_and_the_key_come_from_the_environment(
    bundles: Path, make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(bundles=[bundles / "mood"], api_key="correct-horse") as live:
        monkeypatch.setenv("BERT_URL", live.url)
        monkeypatch.setenv("BERT_API_KEY", "correct-horse")
        assert make().classify("a film").label
        with pytest.raises(UnauthorizedError):
            make(api_key="another").classify("a film")
        with pytest.raises(UnauthorizedError):
            make(api_key="").classify("a film")
        monkeypatch.setenv("BERT_URL", "http://127.0.0.1:9")
        assert make(live.url).classify("a film").label


def test_a_client_without_an_address_names_the_argument_and_the_variable(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERT_URL", raising=False)
    with pytest.raises(ValueError, match=r"pass base_url, .* or set the environment variable BERT_URL"):
        make()
    monkeypatch.setenv("BERT_URL", "localhost:8000")
    with pytest.raises(
        ValueError, match="BERT_URL must begin with http:// or https://, not 'localhost:8000'"
    ):
        make()
    monkeypatch.setenv("BERT_API_KEY", "schlüssel")
    with pytest.raises(ValueError, match="BERT_API_KEY must be printable ASCII"):
        make("http://localhost")
    with pytest.raises(TypeError, match="base_url must be a string, not a value of type int"):
        make(8000)
    with pytest.raises(TypeError, match="api_key must be a string, not a value of type bytes"):
        make("http://localhost", api_key=b"geheim")
