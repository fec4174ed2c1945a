"""Two nodes, each with a torchrun of its own: the same run as one process, also where a node is killed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import LAUNCHERS, Node, end_well, kill_node, meeting_at, namespaces, run_on
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


@pytest.mark.parametrize(
    ("killed", "changes"),
    [
        (1, {"sharding": "full"}),
        pytest.param(1, {}, marks=pytest.mark.soak),
    ],
    ids=["in parts", "whole"],
)
def test_a_node_that_is_killed_and_started_again_changes_no_bit(
    corpus: Path, tmp_path: Path, network: list[Node], killed: int, changes: dict[str, Any]
) -> None:
    values = {
        "max_steps": 120,
        "save_every_steps": 4,
        "eval_every_steps": 50,
        "eval_examples": 600,
        **changes,
    }
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    one_machine = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = start([*one_machine, *arguments(corpus, calm, **values)])
    printed = ended(run)
    assert run.returncode == 0, printed

    program, meeting = arguments(corpus, disturbed, **values), meeting_at(network[0])
    runs = [node.start(program, meeting, restarts=3) for node in network]
    wait_for_steps(runs[0], disturbed, 15)
    kill_node(runs[killed])
    assert checkpoints(disturbed) and len(losses(disturbed)) < 60
    runs[killed] = network[killed].start(program, meeting, restarts=3)
    assert "resuming from step" in end_well(runs)
    assert losses(disturbed) == losses(calm)
    models = [(out / "model" / "model.safetensors").read_bytes() for out in (calm, disturbed)]
    assert models[0] == models[1]
