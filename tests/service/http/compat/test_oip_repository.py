"""Triton's model repository API, by Triton's own client."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert.bundle import MODEL
from tests.support.live import Live, serving
from tests.support.tiny import SPECS, write_tiny_bundle

KEY = "correct-horse"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEXT = {"text": "a warm film was dull"}


@pytest.fixture
def triton() -> Any:
    return pytest.importorskip(
        "tritonclient.http", reason="tritonclient[http] is not installed: `make clients` installs it"
    )


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    for name in ("mood", "names"):
        shutil.copytree(bundles / name, tmp_path / "served" / name)
    return tmp_path / "served"


@pytest.fixture
def live(folder: Path) -> Iterator[Live]:
    with serving(bundles=[folder], admin_api_key=KEY, api_key="battery-staple") as running:
        yield running


def listed(live: Live, **body: object) -> list[tuple[str, str, str]]:
    reply = live.post("/v2/repository/index", body, **HEADERS)
    return [(each["name"], each["version"], each["state"]) for each in reply.json]


def test_tritons_client_lists_loads_and_unloads(triton: Any, live: Live, folder: Path) -> None:
    from tritonclient.utils import InferenceServerException

    with triton.InferenceServerClient(live.url.removeprefix("http://")) as client:
        found = client.get_model_repository_index(headers=HEADERS)
        assert [(each["name"], each["state"]) for each in found] == [("mood", "READY"), ("names", "READY")]
        client.unload_model("names", headers=HEADERS)
        assert not client.is_model_ready("names")
        client.load_model("names", headers=HEADERS)
        assert client.is_model_ready("names")
        with pytest.raises(InferenceServerException, match=r"\[400\] .*config.*is not taken"):
            client.load_model("names", headers=HEADERS, config="{}")
        with pytest.raises(InferenceServerException, match=r"\[403\]"):
            client.unload_model("names")
        with pytest.raises(InferenceServerException, match=r"\[404\] there is no model 'nope'"):
            client.load_model("nope", headers=HEADERS)
        (folder / "mood" / MODEL).write_bytes(b"no graph")
        write_tiny_bundle(folder.parent / "new", "mood", SPECS["mood"], 5)
        shutil.copy(folder.parent / "new" / "bundle.json", folder / "mood")
        with pytest.raises(InferenceServerException, match=r"\[400\] .*the file was changed"):
            client.load_model("mood", headers=HEADERS)
        assert client.is_model_ready("mood")


def test_the_same_requests_by_hand(live: Live, folder: Path) -> None:
    assert "model_repository" in live.get("/v2", x_api_key="battery-staple").json["extensions"]
    assert listed(live) == [("mood", "1", "READY"), ("names", "1", "READY")]
    path = "/v2/repository/models/names"
    assert live.post(f"{path}/unload", b"", **HEADERS).json == {"name": "names", "unload": True}
    assert listed(live) == [("mood", "1", "READY"), ("names", "", "UNAVAILABLE")]
    assert listed(live, ready=True) == [("mood", "1", "READY")]
    assert live.post(f"{path}/load", {}, **HEADERS).json == {"name": "names", "load": True}
    for refused, status in (
        (live.post(f"{path}/load", {}), 403),
        (live.post("/v2/repository/index", {}, x_api_key="battery-staple"), 403),
        (live.post("/v2/repository/models/nope/load", {}, **HEADERS), 404),
        (live.post("/v2/repository/index", b"{", **HEADERS), 400),
        (live.post(f"{path}/load", {"parameters": {"config": "{}"}}, **HEADERS), 400),
    ):
        assert refused.status == status and refused.json.keys() == {"error"}
