"""Model FLOPs utilisation (MFU): the matrix products that a model needs, over those that the machine could do.

After Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B). Padding, masked blocks of packed rows and activation
checkpointing are not needed, so they lower the MFU.
"""

import re
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.benchmark import Timer

from bert.nn.encoder import LayerStack
from training.pretraining.objectives.base import Objective

PASSES = 3
"""Products of a training step for each one of the forward pass: backward has one for the input and one for the weight."""
SIDES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}
"""Sides of the square matrices to try: no size is the fastest everywhere."""
SECONDS = 0.1
"""Time to measure each size."""
_AT_PREDICTED = re.compile(r"\b(cls|head|pooler|boundary|generator_predictions|generator_lm_head)\b")
"""Layers that run at predicted positions only, by name; pooler and pair head run at fewer, and count for nearly nothing."""

_OF_VECTORS = re.compile(r"\.(pos_key_proj|pos_query_proj)$")
"""Layers that run once a batch."""


class Flops(NamedTuple):
    """FLOPs of a training step. Only matrix products count, two FLOPs for a weight."""

    token: float = 0.0
    """FLOPs of one token."""
    predicted: float = 0.0
    """Additional FLOPs of one predicted token."""
    attended: float = 0.0
    """FLOPs of one token for each token that it attends to, in layers that see the whole example."""
    in_window: float = 0.0
    """FLOPs of one token for each token that it attends to, in layers that see a window only."""


def count_flops(objective: Objective) -> Flops:
    """Count a step's FLOPs, those of a frozen teacher's forward pass among them."""
    parts = [(objective, PASSES), *((model, 1) for model in objective.frozen)]
    counts = [[passes * count for count in _forward(model)] for model, passes in parts]
    return Flops(*map(sum, zip(*counts, strict=True)))


def _forward(model: nn.Module) -> Flops:
    token = predicted = attended = in_window = 0.0
    times = {
        f"{name}.layer.{number}.": layers.order.count(number)
        for name, layers in model.named_modules()
        if isinstance(layers, LayerStack)
        for number in range(len(layers.layer))
    }
    for name, module in model.named_modules():
        # Layers that share their weights run several times.
        count = next((found for prefix, found in times.items() if name.startswith(prefix)), 1)
        if isinstance(module, LayerStack):
            products = module.products()
            token += 2 * products.token
            attended += 2 * products.attended
            in_window += 2 * products.in_window
        elif isinstance(module, nn.Linear) and _AT_PREDICTED.search(name):
            predicted += 2 * module.weight.numel()
        elif isinstance(module, nn.Linear) and not _OF_VECTORS.search(name):
            token += 2 * count * module.weight.numel()
    return Flops(token, predicted, attended, in_window)


class Utilisation:
    """The MFU of a run, step by step."""

    def __init__(self, objective: Objective, predicted_share: float, peak_flops: float) -> None:
        """`predicted_share` is that of all tokens; `peak_flops` are the FLOPs a second of all processes at their best."""
        self.flops, self.peak_flops = count_flops(objective), peak_flops
        self.predicted_share = 1.0 if objective.predicts_all else predicted_share
        self.window = objective.model.config.body.window

    def share(self, tokens_per_second: float, mean_length: float) -> float:
        """Return the MFU, 0 to 1. A token attends to `mean_length` tokens, also in packed rows, or to its window of them."""
        flops = self.flops
        needed = flops.token + self.predicted_share * flops.predicted + mean_length * flops.attended
        needed += mean_in_window(mean_length, self.window) * flops.in_window
        return tokens_per_second * needed / self.peak_flops


def mean_in_window(length: float, window: float) -> float:
    """Return how many tokens of an example are at most `window` places from one of its tokens, on average."""
    if length <= window + 1:
        return length
    return 2 * window + 1 - window * (window + 1) / length


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return FLOPs a second of square matrix products, on all of torch's threads or the whole GPU.

    Measure before the training begins: some hundred MB of a GPU are in use meanwhile.
    """
    generator = torch.Generator(device).manual_seed(0)  # the global one is left alone
    best = 0.0
    for side in SIDES.get(device.type, SIDES["cpu"]):
        # Random, not zeros: a GPU runs faster on zeros than it ever will on weights.
        a, b = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
        timer = Timer(
            "torch.mm(a, b)", globals={"torch": torch, "a": a, "b": b}, num_threads=torch.get_num_threads()
        )
        best = max(best, 2 * side**3 / min(timer.blocked_autorange(min_run_time=SECONDS).times))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return best
