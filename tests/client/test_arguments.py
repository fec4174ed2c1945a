"""What the clients refuse before they send anything, and numbers of numpy as options."""

from typing import Any

import numpy as np
import pytest

from bert_client import BertError, UnknownModelError
from tests.client.conftest import MakeClient


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
