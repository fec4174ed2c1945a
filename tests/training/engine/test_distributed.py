"""Several processes that train one model."""

from collections.abc import Sequence
from typing import TypeVar, cast

import pytest
import torch

from bert.errors import TrainingError
from training.engine.distributed import Processes, pick_device

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
