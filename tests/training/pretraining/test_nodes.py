"""Two nodes, each with a torchrun of its own: the same run as one process."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pretraining_runs import TINY, arguments, ended, losses, start

pytestmark = pytest.mark.slow
STEADY = {
    "model": {
        **TINY,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },  # each process draws its own
    "schedule": "constant",  # the rate does not depend on the length
}
STEPS = 30
Losses = list[tuple[int, float, float]]


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Losses of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    run = start(arguments(corpus, out, **STEADY, max_steps=STEPS))
    printed = ended(run)
    assert run.returncode == 0, printed
    return losses(out)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
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
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def launch(
    node: int, address: str, port: int, program: list[str], before: list[str]
) -> subprocess.Popen[str]:
    """Start a node's torchrun, as docs/pretraining.md has it."""
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--node-rank",
        str(node),
        "--nproc-per-node",
        "1",
    ]
    torchrun += ["--master-addr", address, "--master-port", str(port)]
    return start([*torchrun, *program], before, env={**os.environ, "OMP_NUM_THREADS": "1"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_nodes(corpus: Path, out: Path, address: str, befores: list[list[str]], ends: list[int]) -> Losses:
    """Run both nodes to each of the ends in turn, by the same command; return the losses of all parts."""
    for steps in ends:
        program, port = arguments(corpus, out, **STEADY, max_steps=steps), free_port()
        nodes = [launch(node, address, port, program, before) for node, before in enumerate(befores)]
        printed = [ended(node) for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], "\n\n".join(printed)
    return losses(out)


def assert_same(found: Losses, expected: Losses) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([STEPS], id="once"),
        pytest.param([STEPS // 2, STEPS], id="resumed", marks=pytest.mark.soak),
    ],
)
def test_two_launchers_on_one_machine_have_the_losses_of_one_process(
    corpus: Path, tmp_path: Path, alone: Losses, ends: list[int]
) -> None:
    assert_same(run_nodes(corpus, tmp_path / "run", "127.0.0.1", [[], []], ends), alone)


@pytest.mark.soak
def test_two_nodes_on_a_network_have_the_losses_of_one_process(
    corpus: Path, tmp_path: Path, alone: Losses, namespaces: list[str]
) -> None:
    # The name of this host leads to 127.0.0.1 in every namespace: gloo is told where the other node is to be found.
    befores = [["ip", "netns", "exec", name, "env", "GLOO_SOCKET_IFNAME=eth0"] for name in namespaces]
    assert_same(run_nodes(corpus, tmp_path / "run", "10.77.0.1", befores, [STEPS // 2, STEPS]), alone)
