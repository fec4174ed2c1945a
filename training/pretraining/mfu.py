"""How much of the machine a run uses: model FLOPs utilisation (MFU), and the two numbers that it is made of.

MFU is the rate of multiplications and additions that the model asks for, over the rate that the machine reaches in
plain matrix products (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B). What is spent on padding, on masked
blocks of packed rows or on activation checkpointing is not asked for, so it lowers the MFU.
"""

import time
from functools import lru_cache

import torch
from torch import Tensor

from bert.config import BertConfig

BACKWARD = 2.0
"""The backward pass has two products, for the input and for the weight, where the forward pass has one."""
SIDES = {"cpu": (512, 1024, 2048, 4096), "cuda": (4096, 8192)}
"""Sides of the square matrices that are tried: no one size is the fastest everywhere, and 64 cores want large ones."""
GPU_QUEUE_S = 0.01
"""Products are queued for about this long between two looks at the clock, else the launch would be timed."""


def flops_per_token(config: BertConfig, mean_length: float, masked_share: float) -> float:
    """Return FLOPs, forward and backward, that one real token of a training step costs.

    `mean_length` is how many tokens a token attends to, itself included: the mean length of an example, also in packed
    rows. `masked_share` is the share of tokens that the MLM head predicts; 0 where there is no such head.
    """
    return (1 + BACKWARD) * forward_flops_per_token(config, mean_length, masked_share)


def forward_flops_per_token(config: BertConfig, mean_length: float, masked_share: float) -> float:
    """Return FLOPs of the forward pass a token (a teacher has no other); arguments as in `flops_per_token`.

    Matrix products only, two FLOPs a weight: 4·H² and 2·H·I weights a layer, scores and their use in attention 4·T·H,
    and at a predicted position H² + H·V. Left out, far below 1%: the pooler, one row an example, and all that is done
    element by element.
    """
    width, inner = config.hidden_size, config.intermediate_size
    layer = 2 * (4 * width * width + 2 * width * inner) + 4 * mean_length * width
    head = 2 * (width * width + width * config.vocab_size)
    return config.num_hidden_layers * layer + masked_share * head


def utilisation(tokens_per_second: float, token_flops: float, peak_flops: float) -> float:
    """Return the MFU, 0 to 1. With several processes: the tokens of all, and the sum of their peaks."""
    return tokens_per_second * token_flops / peak_flops if peak_flops > 0 else 0.0


def matmul_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """Return FLOPs a second of square matrix products in `dtype`, on all of torch's threads or the whole GPU.

    The best of a few sizes and of many products, measured in about `seconds`, once a process. It takes up to 800 MB on
    a GPU for that time and gives them back: measure before the training begins.
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
    """Return the seconds of one product, of `repeats` that follow one another."""
    _wait(a.device)
    started = time.perf_counter()
    for _ in range(repeats):
        torch.mm(a, b, out=out)
    _wait(a.device)
    return (time.perf_counter() - started) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
