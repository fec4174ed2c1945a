"""What a machine takes from a service under load: room on its disk, places to write, the right time, memory."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from service.workers.supervisor import FIRST_TRIES
from tests.support.crashing import COMMAND as CRASHING
from tests.support.crashing_child import KILLED_LOADING
from tests.support.disks import small_disk
from tests.support.fleet import LIMITS, NEVER_HUNG, OPTIONS, Fleet, is_alive, kill, soon
from tests.support.live import Client, Reply
from tests.support.problems import TEXT
from tests.support.process import COMMAND, address, children, started
from tests.support.tiny import WORDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and cgroups need root"),
]
CLIENTS = 4
ASKED = 20
"""Answers awaited between two steps of a test, so that it has load."""


class Load:
    """Clients that ask without a pause, and the statuses of what they got."""

    def __init__(self) -> None:
        self.statuses = Counter[int]()
        self.is_over = threading.Event()

    def more(self) -> None:
        """Wait until more has been answered."""
        before = self.statuses.total()
        soon(lambda: self.statuses.total() >= before + ASKED)

    def ask(self, client: Client) -> None:
        while not self.is_over.is_set():
            self.statuses[client.post("/classify", TEXT).status] += 1


@contextmanager
def load(client: Client) -> Iterator[Load]:
    """Ask a service until the block ends."""
    asking = Load()
    with ThreadPoolExecutor(CLIENTS) as pool:
        tasks = [pool.submit(asking.ask, client) for _ in range(CLIENTS)]
        try:
            asking.more()
            yield asking
        finally:
            asking.is_over.set()
        for task in tasks:
            task.result()


@contextmanager
def served(bundle: Path, folder: Path, *arguments: str, command: Sequence[str] = COMMAND) -> Iterator[Fleet]:
    """Serve a bundle with one frontend and its temporary files in a folder."""
    options = (*OPTIONS, *LIMITS, *NEVER_HUNG, "--frontends", "1", "--bundles", str(bundle), *arguments)
    with started(*options, command=command, TMPDIR=str(folder)) as process:
        running = Fleet(address(process.until("Ctrl-C")), process, folder)
        running.all_ready()
        yield running


def test_on_a_full_disk_requests_are_answered_and_processes_start_again(
    bundles: Path, short_tmp_path: Path
) -> None:
    with small_disk(short_tmp_path, "4m"), served(bundles / "mood", short_tmp_path) as running:
        with load(running) as asking:
            with (short_tmp_path / "filling").open("wb", buffering=0) as file, pytest.raises(OSError):
                while True:
                    file.write(bytes(4096))
            asking.more()
            assert running.get("/metrics").status == running.get("/health/ready").status == 200
            kill(running.engine)
            asking.more()
        assert set(asking.statuses) == {200}
        kill(running.frontends[0])  # its connections end with it
        running.all_ready()
        assert running.post("/classify", TEXT).status == running.get("/metrics").status == 200


READ_ONLY = """
mount --make-rprivate / && mount --bind / / && mount -o remount,bind,ro / && mount -t tmpfs -o ro tmpfs /dev/shm || exit 77
touch "$TMPDIR/file" /tmp/file /var/tmp/file /dev/shm/file 2>/dev/null && exit 77
exec "$@"
"""
"""Runs a command where no temporary file can be made, as in a container with a read-only root; 77 if that cannot be had."""


def read_only(*command: str) -> list[str]:
    probe = ["unshare", "-m", "bash", "-c", READ_ONLY, "bash"]
    if subprocess.run([*probe, "true"], capture_output=True, env={**os.environ, "TMPDIR": "/tmp"}).returncode:
        pytest.skip("this machine does not let a test make its file systems read-only")
    return [*probe, *command]


def test_where_nothing_can_be_written_one_process_answers(bundles: Path) -> None:
    command = read_only(*COMMAND)
    with started(*OPTIONS, "--bundles", str(bundles / "mood"), command=command, TMPDIR="/tmp") as process:
        client = Client(address(process.until("Ctrl-C")))
        with load(client) as asking:
            asking.more()
            lines = b"\n".join([b'{"text": "a film was warm"}'] * 500)
            reply = client.post("/classify", lines, content_type="application/x-ndjson")
            assert (reply.status, reply.body.count(b"results")) == (200, 500)
            assert client.get("/metrics").status == 200
        assert set(asking.statuses) == {200}
        assert not children(process.popen.pid)
    refused = subprocess.run(
        [*command, "--bundles", str(bundles / "mood"), "--frontends", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": "/tmp"},
        cwd=Path(__file__).parents[3],
    )
    assert refused.returncode == 1
    assert "set TMPDIR, or --frontends 0" in refused.stderr


def faketime() -> str:
    """Return the library that changes a process's clock; the package libfaketime has it."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), os.environ.get("LIBFAKETIME", "")]
    if not (library := str(found[0])):
        pytest.skip("libfaketime is not installed: apt-get install libfaketime")
    return library


def test_the_clock_may_jump(bundles: Path, short_tmp_path: Path) -> None:
    """By an hour to both sides, as when a machine first hears the right time."""
    offset = short_tmp_path / "offset"
    offset.write_text("+0")
    clock = {
        "LD_PRELOAD": faketime(),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    arguments = ("--log-level", "info", "--hung-after-s", "20", "--access-log")
    options = (*OPTIONS, *arguments, "--frontends", "1", "--bundles", str(bundles / "mood"))
    with started(*options, TMPDIR=str(short_tmp_path), **clock) as process:
        running = Fleet(address(process.until("Ctrl-C")), process, short_tmp_path)
        running.all_ready()
        before = running.children()
        with load(running) as asking:
            for hours in ("+3600", "-3600", "+0"):
                offset.write_text(hours)
                end = time.monotonic() + 3  # the library looks every second, the parent every half
                while time.monotonic() < end:
                    asking.more()
                assert running.get("/health/ready").status == running.get("/metrics").status == 200
        assert set(asking.statuses) == {200}
        assert running.children() == before
        running.stop()
        assert process.popen.wait(120) == 0
        hours_logged = set(re.findall(r"^\d+-\d+-\d+ (\d\d):.*POST", process.error(), re.MULTILINE))
    assert len(hours_logged) >= 3, "the clock has not jumped"


GROUP = Path("/sys/fs/cgroup/memory")
HUNGRY = """
held = []
while True:
    held.append(bytearray(b"x") * 2**20)
"""
"""A process that takes memory until there is none."""


@contextmanager
def memory_group() -> Iterator[Path]:
    """Make a group of processes whose memory can be limited (cgroup v1)."""
    group = GROUP / f"test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this machine does not let a test limit memory (cgroup v1)")
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        soon(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def within(group: Path, command: Sequence[str]) -> list[str]:
    """Return a command that runs another in a group."""
    return ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash", *command]


def test_an_engine_that_runs_out_of_memory_is_replaced_and_no_request_is_lost(
    bundles: Path, short_tmp_path: Path
) -> None:
    with memory_group() as group, served(bundles / "mood", short_tmp_path) as running:
        for pid in (running.supervisor, *running.children()):
            (group / "cgroup.procs").write_text(str(pid))
        # Pages that were there before do not count, so there is room for all that the processes have.
        (group / "memory.limit_in_bytes").write_text(str(300 * 2**20))
        engine, others = running.engine, [running.supervisor, *running.frontends]
        # The kernel ends the engine first, as where its models are what is large.
        Path(f"/proc/{engine}/oom_score_adj").write_text("1000")
        with load(running) as asking:
            hungry = subprocess.Popen(within(group, [sys.executable, "-c", HUNGRY]))
            try:
                soon(lambda: not is_alive(engine))
            finally:
                hungry.kill()
                hungry.wait()
            asking.more()
            running.all_ready()
            asking.more()
        assert set(asking.statuses) == {200}
        assert [running.supervisor, *running.frontends] == others
        assert running.metric("bert_engine_restarts_total") >= 1


def scores(reply: Reply) -> list[float]:
    return [result["score"] for result in reply.json["results"]]


def test_an_engine_without_memory_for_a_batch_runs_it_in_parts(
    long_bundle: Path, short_tmp_path: Path
) -> None:
    options = ("--batch-tokens", "16384")
    many = {"text": [" ".join(["film"] * 500 + [*words]) for words in pairwise(WORDS * 2)]}
    long = {"text": "film " * 4000}
    with (
        memory_group() as group,
        served(long_bundle, short_tmp_path, *options, command=within(group, COMMAND)) as running,
    ):
        engine = running.engine
        (held,) = re.findall(r"^total_rss (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        (group / "memory.limit_in_bytes").write_text(str(int(held) + 150 * 2**20))
        soon(lambda: resource.prlimit(engine, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY)
        with ThreadPoolExecutor() as pool:
            replies = list(pool.map(lambda _: running.post("/classify", many), range(4)))
            refused = running.post("/classify", long)
        assert {reply.status for reply in replies} == {200}
        assert (refused.status, refused.json["type"]) == (503, "urn:bert-serve:out-of-memory")
        assert "a text of 4002 tokens needs more memory" in refused.json["detail"]
        assert running.readiness()[0] == 200
        assert running.metric("bert_batches_out_of_memory_total", model="long") > 1
        assert running.metric("bert_requests_rejected_total", reason="out_of_memory") == 1
        (group / "memory.limit_in_bytes").write_text("-1")
        soon(lambda: running.post("/classify", long).status == 200)
        whole = running.post("/classify", many)
        for reply in replies:
            assert scores(reply) == pytest.approx(scores(whole), abs=1e-5)
        assert running.engine == engine and not running.metric("bert_engine_restarts_total")
        assert "oom_kill 0" in (group / "memory.oom_control").read_text()


def test_a_service_whose_models_do_not_fit_into_its_memory_says_so_and_exits(
    bundles: Path, short_tmp_path: Path
) -> None:
    with memory_group() as group:
        (group / "memory.limit_in_bytes").write_text(str(400 * 2**20))
        command = within(group, CRASHING)
        options = (*OPTIONS, "--frontends", "1", "--bundles", str(bundles / "mood"))
        variables = {"TMPDIR": str(short_tmp_path), KILLED_LOADING: str(2**30)}
        with started(*options, command=command, **variables) as process:
            assert process.popen.wait(120) == 1
            said = process.error()
        counted = (group / "memory.oom_control").read_text()
    kills = int(counted.split("oom_kill ")[1])  # the kernel may take a process's helper along
    assert kills >= FIRST_TRIES, "it was the kernel"
    assert "was ended by SIGKILL, and 4 starts have failed before the models were loaded" in said
    assert "when the memory of 400 MiB that this container or machine has is full: raise the limit" in said
