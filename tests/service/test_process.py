"""bert-serve as a process: what it prints, how it ends, what it imports."""

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.fleet import fleet
from tests.support.live import Client, eventually
from tests.support.process import COMMAND, Process, address, children, started

ROOT = Path(__file__).parents[2]


DEFAULTS = [
    ("classify", "mood"),
    ("ner", "names"),
    ("similarity", "meaning"),
    ("qa", "reader"),
    ("multiple-choice", "stories"),
    ("fill-mask", "gaps"),
]


def test_it_prints_address_models_and_lines_to_paste_and_ends_with_0(bundles: Path) -> None:
    with started("--bundles", str(bundles), "--default-models", "classification=mood") as process:
        shown = process.until("Ctrl-C")
        assert f"Ready at {address(shown)}" in shown
        assert "mood 1: classification, fp32, default" in shown
        pasted = re.findall(r"^  (curl .*)$", shown, re.MULTILINE)
        answered = []
        for line in pasted:
            answer = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
            assert '"results"' in answer, answer
            answered.append((line.split()[2].rpartition("/")[2], json.loads(answer)["model"]))
            assert ('"model"' in line) == (answered[-1] not in DEFAULTS)
            assert ('"text_pair"' in line) == (answered[-1][1] == "entailment")
            assert ('"the film was long"' in line) == (answered[-1][1] == "topics"), "its own example"
        others = [("classify", name) for name in ("entailment", "topics", "stars")]
        assert sorted(answered) == sorted([*DEFAULTS, *others])
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(120) == 0


def is_refused(host: str, port: int) -> bool:
    """Tell whether nobody listens any more."""
    try:
        socket.create_connection((host, port), 60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_after_sigterm_ready_says_no_and_what_is_in_flight_is_answered(bundles: Path) -> None:
    patient = ("--body-timeout-ms", "120000")
    with started("--bundles", str(bundles / "names"), "--drain-s", "4", *patient) as process:
        url = address(process.until("Ctrl-C"))
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as slow:
            body = b'{"text": "angela merkel"}'
            head = (
                "POST /ner HTTP/1.1\r\nhost: x\r\ncontent-type: "
                f"application/json\r\ncontent-length: {len(body)}"
            )
            slow.sendall(head.encode() + b"\r\n\r\n" + body[:5])
            process.popen.send_signal(signal.SIGTERM)
            eventually(lambda: Client(url).get("/health/ready").status == 503)
            eventually(lambda: is_refused(host, int(port)))
            slow.sendall(body[5:])
            assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert process.popen.wait(120) == 0


def test_answers_after_sigterm_tell_clients_to_go_elsewhere_and_no_connection_is_cut(bundles: Path) -> None:
    """Each client goes on until it is told that its connection closes; one that is cut raises."""
    with started("--bundles", str(bundles / "names"), "--drain-s", "0") as process:
        host, port = address(process.until("Ctrl-C")).removeprefix("http://").split(":")

        def ask(number: int) -> int:
            connection, sent = HTTPConnection(host, int(port), timeout=60), 0
            with contextlib.closing(connection):
                while True:
                    connection.request("GET", "/health/live")
                    response = connection.getresponse()
                    response.read()
                    sent += 1
                    if response.getheader("connection") == "close":
                        return sent
                    has_begun[number] = True
                    time.sleep(0.001 * number)

        has_begun = [False] * 16
        with ThreadPoolExecutor(16) as pool:
            clients = [pool.submit(ask, number) for number in range(16)]
            eventually(lambda: all(has_begun))
            process.popen.terminate()
            assert all(client.result(120) > 1 for client in clients)
        assert process.popen.wait(120) == 0


def ask_and_reconnect(place: tuple[str, int]) -> list[int]:
    """Ask on one connection after another until none is taken; return the statuses. A reset, or no answer, raises."""
    statuses = list[int]()
    while True:
        with contextlib.closing(HTTPConnection(*place, timeout=60)) as connection:
            try:
                connection.connect()
            except ConnectionRefusedError:
                return statuses
            connection.request("POST", "/classify", '{"text": "warm"}', {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)


@pytest.mark.parametrize("frontends", [0, 2])
def test_after_sigterm_who_was_connected_is_answered_and_who_comes_later_is_refused(
    bundles: Path, frontends: int
) -> None:
    arguments = ("--bundles", str(bundles / "mood"), "--drain-s", "0")
    with fleet(*arguments, frontends=frontends) as running, ThreadPoolExecutor(24) as pool:
        clients = [pool.submit(ask_and_reconnect, running.connect_to()) for _ in range(24)]
        time.sleep(0.5)
        running.stop()
        asked = [client.result(120) for client in clients]
        assert running.process.popen.wait(120) == 0
    assert {status for statuses in asked for status in statuses} == {200}


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal, or has ended."""
    try:
        found = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return True
    return found is None or bool(int(found[1], 16) >> (number - 1) & 1)


def until_importing(process: Process) -> None:
    # Python itself handles SIGINT, and nothing else.
    eventually(lambda: catches(process.popen.pid, signal.SIGTERM))


def until_listening(process: Process) -> None:
    process.until("listening on")


def until_a_child_starts(process: Process) -> None:
    eventually(lambda: bool(children(process.popen.pid)))


def until_children_import(process: Process) -> None:
    eventually(lambda: len(children(process.popen.pid)) == 2)
    frontend = children(process.popen.pid)[1]
    eventually(lambda: catches(frontend, signal.SIGTERM))


@pytest.mark.parametrize(
    ("frontends", "until"),
    [
        ("1", until_importing),
        ("1", until_listening),
        ("1", until_a_child_starts),
        ("1", until_children_import),
        ("0", until_listening),
    ],
)
def test_ctrl_c_ends_a_start_with_0_whenever_it_comes(
    bundles: Path, frontends: str, until: Callable[[Process], None]
) -> None:
    with started("--bundles", str(bundles / "names"), "--frontends", frontends) as process:
        until(process)
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(120) == 0, process.error()
        assert "Traceback" not in process.error()


def test_a_hang_up_is_ignored_where_nohup_says_so(bundles: Path) -> None:
    command = ["nohup", *COMMAND]
    with started("--bundles", str(bundles / "names"), "--frontends", "1", command=command) as process:
        process.until("Ctrl-C")
        process.popen.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.popen.poll() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("missing", "is not a folder: make one with bert-export"),
        ("empty", "holds no bundle: make one with bert-export"),
        ("twice", "two bundles have the name 'mood'"),
    ],
)
def test_a_start_that_cannot_be_says_what_to_do(
    bundles: Path, tmp_path: Path, make: str, message: str
) -> None:
    folder = tmp_path / "bundles"
    if make != "missing":
        folder.mkdir()
    for name in ("one", "two") if make == "twice" else ():
        shutil.copytree(bundles / "mood", folder / name)
    with started("--bundles", str(folder), "--strict") as process:
        assert process.popen.wait(120) == 1
        assert message in process.error()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine-slots", "1000"], "engine_slots (1000)"),
        (
            ["--default-models", "qa=nope"],
            "default_models: 'nope' is not a loaded qa model; loaded are ['reader']",
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
    modules = "service.cli, service.engine.tune, service.workers.engine_process, service.workers.frontend"
    code = f"import sys, {modules}; print(*(name.partition('.')[0] for name in sys.modules))"
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


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("service.workers.supervisor", {"fastapi", "uvicorn", "onnxruntime", "numpy"}),
        ("service.workers.engine_process", {"fastapi", "uvicorn", "starlette"}),
        ("service.workers.frontend", {"onnxruntime"}),
    ],
)
def test_each_process_imports_its_own_role_only(module: str, others: set[str]) -> None:
    code = f"import sys, {module}; print(*(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not set(run.stdout.split()) & others


@pytest.mark.parametrize(("frontends", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_the_log_tells_of_start_signal_and_end(bundles: Path, frontends: int, number: signal.Signals) -> None:
    options = ("--bundles", str(bundles / "mood"), "--frontends", str(frontends), "--log-format", "json")
    with started(*options) as process:
        process.until("ready in", errors=True)
        process.popen.send_signal(signal.SIGHUP)
        process.until("SIGHUP: the bundles are looked at again", errors=True)
        process.popen.send_signal(number)
        assert process.popen.wait(120) == 0
        said = [json.loads(line) for line in process.error().splitlines()]
    messages = [line["message"] for line in said]
    assert messages[0].startswith("the service starts at http://127.0.0.1:") and "onnxruntime" in messages[0]
    assert (said[0]["pid"], said[0]["frontends"]) == (process.popen.pid, frontends)
    assert messages.count(f"{number.name}: the service stops") == 1
    assert messages[-1].startswith("the service ended with code 0 after")


@pytest.mark.parametrize("frontends", ["0", "1"])
def test_what_ends_a_start_is_a_line_of_json_in_a_log_of_json(
    bundles: Path, tmp_path: Path, frontends: str
) -> None:
    shutil.copytree(bundles / "mood", tmp_path / "mood")
    (tmp_path / "mood/model.onnx").write_bytes(b"half")
    options = ("--bundles", str(tmp_path), "--strict", "--frontends", frontends, "--log-format", "json")
    with started(*options) as process:
        assert process.popen.wait(120) == 1
        said = [json.loads(line) for line in process.error().splitlines()]
    (fatal,) = (line["message"] for line in said if line["level"] == "critical")
    assert "model.onnx" in fatal
