"""bert-serve as a process: what it prints, how it ends, what it imports."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "service.cli", "--port", "0"]


class Process:
    """A running bert-serve, its output read as it comes. `variables` are added to its environment."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        self.popen = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.popen.stdout is not None
        self.lines += iter(self.popen.stdout.readline, "")

    def until(self, text: str) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end and not any(text in line for line in self.lines):
            assert self.popen.poll() is None, self.error()
            time.sleep(0.01)
        return "".join(self.lines)

    def error(self) -> str:
        assert self.popen.stderr is not None
        return self.popen.stderr.read()


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> Iterator[Process]:
    process = Process(*arguments, command=command, **variables)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait(10)
        process.reader.join(10)
        assert process.popen.stdout is not None and process.popen.stderr is not None
        process.popen.stdout.close()
        process.popen.stderr.close()


def address(shown: str) -> str:
    found = re.search(r"http://[\d.]+:\d+", shown)
    assert found, shown
    return found[0]


def test_it_prints_address_models_and_lines_to_paste_and_ends_with_0(bundles: Path) -> None:
    with started("--bundles", str(bundles), "--default-models", "classification=mood") as process:
        shown = process.until("Ctrl-C")
        assert f"Ready at {address(shown)}" in shown
        assert "mood 1: classification, fp32, default" in shown
        pasted = re.findall(r"^  (curl .*)$", shown, re.MULTILINE)
        assert [line.split()[2].rpartition("/")[2] for line in pasted] == [
            "classify",
            "ner",
            "similarity",
            "qa",
            "fill-mask",
        ]
        for line in pasted:
            answer = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
            assert '"results"' in answer, answer
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(10) == 0


def test_after_sigterm_ready_says_no_and_what_is_in_flight_is_answered(bundles: Path) -> None:
    with started("--bundles", str(bundles / "names"), "--drain-s", "1") as process:
        url = address(process.until("Ctrl-C"))
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as slow:
            body = b'{"text": "angela merkel"}'
            head = (
                "POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: "
                f"application/json\r\ncontent-length: {len(body)}"
            )
            slow.sendall(head.encode() + b"\r\n\r\n" + body[:5])
            process.popen.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{url}/health/ready", timeout=10)
            assert refused.value.code == 503
            refused.value.close()
            time.sleep(1.2)  # the listening socket is closed by now
            slow.sendall(body[5:])
            assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert process.popen.wait(10) == 0


def test_ctrl_c_ends_it_with_0(bundles: Path) -> None:
    with started("--bundles", str(bundles / "names"), "--log-format", "json") as process:
        time.sleep(0.5)  # in the middle of loading as well
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(20) in (0, -signal.SIGINT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("missing", "is no folder: make one with bert-export"),
        ("empty", "holds no bundle: make one with bert-export"),
        ("changed", "the file was changed; export the checkpoint again"),
        ("twice", "two bundles have the name 'mood'"),
    ],
)
def test_a_start_that_cannot_be_says_what_to_do(
    bundles: Path, tmp_path: Path, make: str, message: str
) -> None:
    folder = tmp_path / "bundles"
    if make != "missing":
        folder.mkdir()
    if make in ("changed", "twice"):
        for name in ("one", "two") if make == "twice" else ("one",):
            copied = folder / name
            copied.mkdir()
            for file in (bundles / "mood").iterdir():
                (copied / file.name).write_bytes(file.read_bytes())
    if make == "changed":
        (folder / "one/tokenizer.json").write_text("{}")
    with started("--bundles", str(folder)) as process:
        assert process.popen.wait(60) == 1
        assert message in process.error()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine-slots", "1000"], "engine_slots (1000)"),
        (
            ["--default-models", "qa=nope"],
            "default_models: 'nope' is no loaded qa model; loaded are ['reader']",
        ),
    ],
)
def test_a_setting_that_machine_or_bundles_cannot_have_ends_with_2_before_anything_listens(
    bundles: Path, arguments: list[str], message: str
) -> None:
    run = subprocess.run(
        [*COMMAND, "--bundles", str(bundles), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert message in run.stderr and "Traceback" not in run.stderr


def test_a_port_in_use_is_said_at_once(bundles: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [*COMMAND[:-1], str(port), "--bundles", str(bundles)], capture_output=True, text=True, cwd=ROOT
        )
    assert run.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in run.stderr and "--port" in run.stderr


def test_serving_imports_nothing_that_trains_or_exports() -> None:
    code = "import sys, service.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    heavy = {
        "torch",
        "onnx",
        "safetensors",
        "transformers",
        "peft",
        "training",
        "model_export",
        "scipy",
        "pandas",
    }
    assert not set(run.stdout.split()) & heavy
