"""Processes that train one model, started by torchrun; one alone needs no launcher."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bert.errors import TrainingError

if TYPE_CHECKING:  # these imports take a second
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processes:
    """Place of this process among those of the run."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def share(self, items: Sequence[object]) -> list[int]:
        """Return the indices of this process's items: every `world`-th."""
        return list(range(self.rank, len(items), self.world))

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all processes, number by number. Only CPUs take part, so that no GPU is waited for."""
        if self.world == 1:
            return list(numbers)
        # In double, because token counts pass 2^24.
        values: list[float] = self.sum_on_device(torch.tensor(list(numbers), dtype=torch.float64)).tolist()
        return values

    def sum_on_device(self, numbers: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place, where it is; return it."""
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers

    def agree(self, number: int) -> bool:
        """Tell every process whether all of them give the same number."""
        return len(set(self.gather([number]))) == 1

    def gather(self, items: Sequence[T]) -> list[T]:
        """Return the items of all processes, those of the leader first; each process must call it."""
        if self.world == 1:
            return list(items)
        lists: list[Sequence[T]] = [()] * self.world
        dist.all_gather_object(lists, items)
        return [item for each in lists for item in each]

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.world > 1:
            dist.barrier()


def is_spread(tensor: Tensor) -> "TypeIs[DTensor]":
    """Tell whether each process has a part of a tensor."""
    return hasattr(tensor, "full_tensor")


def is_sharded(module: object) -> "TypeIs[FSDPModule]":
    """Tell whether each process has a part of a module's weights."""
    return hasattr(module, "set_requires_gradient_sync")


def shard(module: nn.Module, layers: Iterable[nn.Module], *, bf16: bool = False) -> None:
    """Leave each process a part of a module's weights, in place; one of the `layers` at a time is whole.

    With `bf16` layers are whole in bf16, and gradients are summed in float32.
    """
    # They take a second.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Of bf16 weights half as much is sent and gathered; what passes between layers stays as autocast leaves it.
    halved = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = halved if bf16 else MixedPrecisionPolicy()
    for each in (*layers, module):
        fully_shard(each, mp_policy=policy)


def data_parallel(module: nn.Module, processes: Processes) -> nn.Module:
    """Return the module joined with those of the other processes, whose gradients it takes the mean of."""
    if processes.world == 1:
        return module
    ids = [processes.device.index] if processes.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=ids, gradient_as_bucket_view=True)


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, by its environment (RANK, WORLD_SIZE, LOCAL_RANK); or be alone.

    Only the leading process logs anything below an error. Raises TrainingError where they do not reach each other.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = pick_device(device, local_rank)
    if world == 1:
        yield Processes(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    _join("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
    joined, before = Processes(dist.get_rank(), world, chosen), logging.root.manager.disable
    try:
        if not joined.leads:
            logging.disable(logging.WARNING)
        yield joined
    finally:
        logging.disable(before)
        dist.destroy_process_group()


def _join(backend: str) -> None:
    try:
        dist.init_process_group(backend)
    except RuntimeError as error:
        variables = " and ".join(
            f"{name.upper()}_SOCKET_IFNAME" for name in ("gloo", "nccl") if name in backend
        )
        raise TrainingError(
            f"the processes did not find each other ({error}). Each reaches the others by the address of its host's "
            f"name; where that is 127.0.0.1, set {variables} to the network interface (ip address)"
        ) from error


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device asked for; "auto" takes this process's GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise TrainingError(f"device is {name!r} but torch finds no GPU")
    if name == "cuda":
        return torch.device("cuda", local_rank)
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
        raise TrainingError(f"device {name!r} must be cpu, cuda or auto")
    return torch.device(name)
