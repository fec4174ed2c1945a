"""The suite sets what its tests would take from whoever starts them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOSTILE = {
    "BERT_SERVE_PORT": "1",
    "BERT_EXPORT_PRECISION": "fp16",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "LC_ALL": "tr_TR.UTF-8",
    "LANG": "C",
    "TZ": "Asia/Kathmandu",
    "OMP_NUM_THREADS": "64",
    "RANK": "3",
    "COLUMNS": "20",
    "PYTHONWARNINGS": "ignore",
    "HOME": "/nonexistent",
}
SHOW = """
import json, os, signal, time
import tests.conftest
numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
handlers = [signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler) for number in numbers]
blocked = len(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(json.dumps([handlers, blocked, os.umask(0), time.tzname[0], dict(os.environ)]))
"""


def ignore_and_block() -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.umask(0o077)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has other signals")
def test_neither_signals_nor_umask_nor_variables_reach_the_tests() -> None:
    """As under nohup, in a background job, behind a proxy, in another locale and with settings of the service."""
    command = [sys.executable, "-c", SHOW]
    environment = {**os.environ, **HOSTILE}
    environment.pop("PYTEST_XDIST_WORKER", None)
    shown = subprocess.check_output(command, cwd=ROOT, env=environment, preexec_fn=ignore_and_block)
    handlers, blocked, umask, zone, variables = json.loads(shown)
    assert (handlers, blocked, umask, zone) == ([True] * 3, 0, 0o022, "UTC")
    assert (
        Path(variables["HOME"]).name.startswith("bert-tests-home-") and not Path(variables["HOME"]).exists()
    )
    left = {name: value for name, value in variables.items() if HOSTILE.get(name) == value}
    assert not left
    assert variables["OMP_NUM_THREADS"] == "1"


def test_home_is_an_empty_folder_of_the_suite() -> None:
    assert Path.home().name.startswith("bert-tests-home-")
    (Path.home() / "probe").write_text("it can be written")
    (Path.home() / "probe").unlink()
