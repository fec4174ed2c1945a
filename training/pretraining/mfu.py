"""Model FLOPs utilisation (MFU), and the two rates of which it is the ratio.

MFU is the rate of multiplications and additions that the model needs, over the rate of the machine in plain matrix
products (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B). Padding, masked blocks of packed rows and activation
checkpointing are not needed, so they lower the MFU.
"""

import time
from functools import lru_cache

import torch
from torch import Tensor

from bert.config import BertConfig

BACKWARD = 2.0
"""Matrix products of the backward pass for each one of the forward pass: for the input and for the weight."""
SIDES = {"cpu": (512, 1024, 2048, 4096), "cuda": (4096, 8192)}
"""Sides of the square matrices to try: no size is the fastest everywhere, and 64 cores need large ones."""
GPU_QUEUE_S = 0.01
"""Time of the products between two readings of the clock; with less, launches would be timed."""


def flops_per_token(config: BertConfig, mean_length: float, masked_share: float) -> float:
    """Return FLOPs, forward and backward, that one real token of a training step costs.

    `mean_length` is the number of tokens that a token attends to, itself included: the mean length of an example, also in
    packed rows. `masked_share` is the share of tokens that the MLM head predicts; 0 without that head.
    """
    return (1 + BACKWARD) * forward_flops_per_token(config, mean_length, masked_share)


def forward_flops_per_token(config: BertConfig, mean_length: float, masked_share: float) -> float:
    """Return FLOPs of the forward pass a token (a teacher has no other); arguments as in `flops_per_token`.

    Only matrix products count, two FLOPs a weight: 4·H² and 2·H·I weights a layer, 4·T·H for scores and their use in
    attention, H² + H·V at a predicted position. The pooler and all element-wise work, far below 1%, are left out.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = 2 * (4 * width * width + 2 * width * inner) + 4 * mean_length * width
    head = 2 * (width * width + width * config.vocab_size)
    return config.num_hidden_layers * layer + masked_share * head


def utilisation(tokens_per_second: float, token_flops: float, peak_flops: float) -> float:
    """Return the MFU, 0 to 1. Several processes give the tokens of all and the sum of their peaks."""
    return tokens_per_second * token_flops / peak_flops if peak_flops > 0 else 0.0


def matmul_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """Return FLOPs a second of square matrix products in `dtype`, on all of torch's threads or the whole GPU.

    It is the best of a few sizes and many products, measured in about `seconds`, once a process. Measure before the
    training begins: up to 800 MB of a GPU are in use meanwhile.
    """
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    place = str(torch.device(device.type, index))
    return _peak(place, dtype, seconds, torch.get_num_threads(), torch.get_float32_matmul_precision())


@lru_cache
def _peak(place: str, dtype: torch.dtype, seconds: float, threads: int, precision: str) -> float:
    """Measure; threads and precision are arguments because another value of them is another peak."""
    device = torch.device(place)
    sides = SIDES.get(device.type, SIDES["cpu"])
    best = 0.0
    for side in sides:
        if best and 2 * side**3 / best > seconds:
            break  # a slow machine has shown what it can with the smaller ones
        best = max(best, _rate(device, dtype, side, seconds / len(sides)))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return best


@torch.no_grad()
def _rate(device: torch.device, dtype: torch.dtype, side: int, seconds: float) -> float:
    """Return FLOPs a second of products of two matrices (side, side)."""
    # Random, not zeros: a GPU runs faster on zeros than it ever will on weights. The global generator is left alone.
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    first_s = min(_time(a, b, out, 1) for _ in range(2))
    repeats = max(1, round(GPU_QUEUE_S / first_s)) if device.type == "cuda" else 1
    best_s, ends = first_s, time.perf_counter() + seconds
    while time.perf_counter() < ends:
        best_s = min(best_s, _time(a, b, out, repeats))
    return 2 * side**3 / best_s


def _time(a: Tensor, b: Tensor, out: Tensor, repeats: int) -> float:
    """Return the seconds of a product, averaged over `repeats`."""
    _wait(a.device)
    started = time.perf_counter()
    for _ in range(repeats):
        torch.mm(a, b, out=out)
    _wait(a.device)
    return (time.perf_counter() - started) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
