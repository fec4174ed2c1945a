"""Two nodes, each with a torchrun of its own: the same run as one process, also where a node is killed."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.support.nodes import (
    LAUNCHERS,
    Node,
    end_well,
    kill_node,
    meeting_at,
    meeting_elsewhere,
    namespaces,
    run_on,
)
from tests.support.pretraining_runs import TINY, arguments, checkpoints, ended, losses, start, wait_for_steps

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
def network() -> Iterator[list[Node]]:
    with namespaces() as nodes:
        yield nodes


def run_nodes(corpus: Path, out: Path, nodes: Sequence[Node], ends: list[int]) -> Losses:
    """Run both nodes to each of the ends in turn, by the same command; return the losses of all parts."""
    for steps in ends:
        run_on(nodes, arguments(corpus, out, **STEADY, max_steps=steps))
    return losses(out)


def assert_same(found: Losses, expected: Losses) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.soak
def test_two_launchers_on_one_machine_have_the_losses_of_one_process(
    corpus: Path, tmp_path: Path, alone: Losses
) -> None:
    assert_same(run_nodes(corpus, tmp_path / "run", LAUNCHERS, [STEPS // 2, STEPS]), alone)


@pytest.mark.soak
def test_two_nodes_on_a_network_have_the_losses_of_one_process(
    corpus: Path, tmp_path: Path, alone: Losses, network: list[Node]
) -> None:
    assert_same(run_nodes(corpus, tmp_path / "run", network, [STEPS]), alone)


KILLED = {"max_steps": 60, "save_every_steps": 4, "eval_every_steps": 30, "eval_examples": 64}
Calm = Callable[[str], Path]


@pytest.fixture(scope="module")
def calm(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Return what gives the folder of a run of two processes that nothing befell, by `sharding`."""

    @cache
    def made(sharding: str) -> Path:
        out = tmp_path_factory.mktemp("calm") / "run"
        one_machine = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        run = start([*one_machine, *arguments(corpus, out, **KILLED, sharding=sharding)])
        printed = ended(run)
        assert run.returncode == 0, printed
        return out

    return made


def assert_same_bits(found: Path, expected: Path) -> None:
    assert losses(found) == losses(expected)
    models = [(out / "model" / "model.safetensors").read_bytes() for out in (found, expected)]
    assert models[0] == models[1]


@pytest.mark.parametrize("sharding", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_a_node_that_is_killed_and_started_again_changes_no_bit(
    corpus: Path, tmp_path: Path, network: list[Node], calm: Calm, sharding: str
) -> None:
    out = tmp_path / "run"
    program, meeting = arguments(corpus, out, **KILLED, sharding=sharding), meeting_at(network[0])
    runs = [node.start(program, meeting, restarts=3) for node in network]
    kill_in_the_middle(runs, 1, out)
    runs[1] = network[1].start(program, meeting, restarts=3)
    assert "resuming from step" in end_well(runs)
    assert_same_bits(out, calm(sharding))


@pytest.mark.soak
def test_with_the_first_node_the_run_ends_and_the_same_commands_go_on(
    corpus: Path, tmp_path: Path, network: list[Node], calm: Calm
) -> None:
    out = tmp_path / "run"
    program = arguments(corpus, out, **KILLED, sharding="full")
    for first in (True, False):
        meeting = meeting_at(network[0])
        runs = [node.start(program, meeting, restarts=3) for node in network]
        if first:
            kill_in_the_middle(runs, 0, out)
            _, printed = runs[1].communicate(timeout=300)
            assert runs[1].returncode == 1 and "RendezvousConnectionError" in printed
    assert "resuming from step" in end_well(runs)
    assert_same_bits(out, calm("full"))


@pytest.mark.soak
def test_a_first_node_that_is_killed_is_waited_for_where_all_meet_elsewhere(
    corpus: Path, tmp_path: Path, network: list[Node], calm: Calm
) -> None:
    out = tmp_path / "run"
    program = arguments(corpus, out, **KILLED, sharding="full")
    with meeting_elsewhere(network[1]) as meeting:
        runs = [node.start(program, meeting, restarts=3, elsewhere=True) for node in network]
        kill_in_the_middle(runs, 0, out)
        runs[0] = network[0].start(program, meeting, restarts=3, elsewhere=True)
        assert "resuming from step" in end_well(runs)
    assert_same_bits(out, calm("full"))


def kill_in_the_middle(runs: list[subprocess.Popen[str]], killed: int, out: Path) -> None:
    """Kill a node once the run has checkpoints, and before its end."""
    wait_for_steps(runs[0], out, 10)
    kill_node(runs[killed])
    assert checkpoints(out) and len(losses(out)) < KILLED["max_steps"]
