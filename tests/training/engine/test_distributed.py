"""Several processes that train one model."""

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import pytest
import torch

from bert.errors import TrainingError
from training.engine.distributed import Processes, pick_device, processes

T = TypeVar("T")


class WithAnother(Processes):
    """Two processes, the other of which stands at step 5."""

    def gather(self, items: Sequence[T]) -> list[T]:
        return [*items, cast(T, 5)]


@pytest.mark.parametrize(("step", "agrees"), [(5, True), (0, False), (6, False)])
def test_processes_agree_on_a_number_or_do_not(step: int, agrees: bool) -> None:
    assert WithAnother(0, 2, torch.device("cpu")).agree(step) is agrees


def test_a_process_alone_agrees() -> None:
    assert Processes(0, 1, torch.device("cpu")).agree(7)


@pytest.mark.parametrize("name", ["foo", "meta", "cpux", "mps"])
def test_a_device_that_is_none_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(TrainingError, match="must be cpu, cuda or auto"):
        pick_device(name)


def test_nodes_with_folders_of_their_own_are_told(
    begin: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processes, "agree", lambda *_: False)
    with pytest.raises(
        TrainingError, match=r"resume from different steps, this one from 0: .* the same folder on all nodes"
    ):
        begin("classification")


def test_processes_that_do_not_meet_are_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("Gloo connectFullMesh failed")

    monkeypatch.setattr("torch.distributed.init_process_group", fail)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(
            TrainingError, match=r"connectFullMesh.*set GLOO_SOCKET_IFNAME to the network interface"
        ),
        processes("cpu"),
    ):
        pass
