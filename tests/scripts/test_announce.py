import importlib.util
import json
import re
import socket
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def announce() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "announce.py"
    spec = importlib.util.spec_from_file_location("announce", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_free_port_is_accepted(announce: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert announce.check_port("127.0.0.1", port) == 0


def test_a_port_in_use_is_refused_with_another_to_take(
    announce: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert announce.check_port("127.0.0.1", port) == 1
    assert f"make serve PORT={port + 1}" in capsys.readouterr().err


def test_waiting_ends_with_the_process(announce: ModuleType) -> None:
    beyond_every_pid = 2**30
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert announce.announce("127.0.0.1", port, beyond_every_pid) == 1


def test_four_curl_lines_hold_json(announce: ModuleType) -> None:
    text = announce.message("http://127.0.0.1:8000")
    curls = re.findall(r"curl -s http://127.0.0.1:8000/(\w+) -H '[^']+' -d '([^']+)'", text)
    assert [path for path, _ in curls] == ["classify", "ner", "similarity", "qa"]
    assert all(json.loads(body) for _, body in curls)
