"""Tensors on their way from the host to a device."""

import torch
from torch import Tensor

PINNED_FOR = {"cuda"}
"""Kinds of device that fetch pinned memory by themselves, so that the host need not wait."""


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device."""
    pinned = device.type in PINNED_FOR
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)
