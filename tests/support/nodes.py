"""Two nodes of a run, each with a torchrun of its own, as docs/pretraining.md has it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Node:
    """A machine as torchrun sees it."""

    number: int
    address: str
    before: tuple[str, ...] = ()
    """Command that runs another in the node's network."""

    def start(
        self, program: Sequence[str], meeting: str, restarts: int = 0, *, elsewhere: bool = False
    ) -> subprocess.Popen[str]:
        """Start the node's torchrun with one process.

        The first node has the `meeting` (address:port), unless it is `elsewhere`.
        """
        is_host = self.number == 0 and not elsewhere
        launcher = [
            "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--rdzv-id", "test",
            # Nodes of a test have one host name: torchrun cannot tell which of them has the meeting.
            # A dead node is missed after six seconds, not fifteen; one that is late by three is alive.
            "--rdzv-conf", f"is_host={int(is_host)},keep_alive_interval=2", "--local-addr", self.address,
        ]  # fmt: skip
        command = [*self.before, sys.executable, *launcher, *program]
        # torch 2.13: a first node that stays does not tell its address to one that joins later, unless this is set.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


LAUNCHERS = [Node(0, "127.0.0.1"), Node(1, "127.0.0.1")]
"""Two nodes on one machine and one network."""


@contextmanager
def namespaces() -> Iterator[list[Node]]:
    """Two network namespaces joined by a cable: the nodes 10.77.0.1 and 10.77.0.2, which share nothing but files."""
    names = [f"bert{os.getpid()}n{node}" for node in (0, 1)]
    script = [f"ip netns add {name}" for name in names]
    script += [f"ip link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}"]
    for node, name in enumerate(names):
        script += [
            f"ip -n {name} address add 10.77.0.{node + 1}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {name} link set lo up",
        ]
    try:
        if os.geteuid() or not shutil.which("ip"):
            pytest.skip("network namespaces need root and iproute2")
        made = subprocess.run(["sh", "-ec", "\n".join(script)], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"this machine allows no network namespaces: {made.stderr.strip()}")
        # The name of this host leads to 127.0.0.1 in every namespace: gloo is told where the other node is to be found.
        here = ("env", "GLOO_SOCKET_IFNAME=eth0")
        yield [
            Node(node, f"10.77.0.{node + 1}", ("ip", "netns", "exec", name, *here))
            for node, name in enumerate(names)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


MEETING = (
    "import signal; from torch.distributed import TCPStore; "
    "store = TCPStore('0.0.0.0', {port}, is_master=True, wait_for_workers=False); signal.pause()"
)
"""Program of docs/pretraining.md that nodes meet at, on a machine that is none of them."""


@contextmanager
def meeting_elsewhere(node: Node) -> Iterator[str]:
    """Run a meeting by itself in a node's network; yields its address and port. It outlives the node's torchrun."""
    meeting = meeting_at(node)
    program = MEETING.format(port=meeting.rpartition(":")[2])
    with subprocess.Popen([*node.before, sys.executable, "-c", program]) as process:
        try:
            yield meeting
        finally:
            process.kill()


def run_on(nodes: Sequence[Node], program: Sequence[str]) -> str:
    """Run a program on all nodes to its end; return what they printed."""
    meeting = meeting_at(nodes[0])
    runs = [node.start(program, meeting) for node in nodes]
    return end_well(runs)


def end_well(runs: Sequence[subprocess.Popen[str]]) -> str:
    """Wait for the end of all nodes, which must be a good one; return what they printed."""
    printed = "\n\n".join(run.communicate(timeout=600)[1] for run in runs)
    assert [run.returncode for run in runs] == [0] * len(runs), printed
    return printed


def meeting_at(node: Node) -> str:
    """Return address and port where the nodes of a run meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"{node.address}:{probe.getsockname()[1]}"


def kill_node(run: subprocess.Popen[str]) -> None:
    """Kill torchrun and its processes, which are in sessions of their own."""
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    for process in (run.pid, *map(int, workers)):
        os.kill(process, signal.SIGKILL)
    run.communicate(timeout=300)  # returns when the last process that holds the pipe has ended
