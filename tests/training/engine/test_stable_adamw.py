"""StableAdamW against algorithm 2 of its paper, written out in numpy."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import Parameter

from training.engine import optim

Array = NDArray[np.float64]
RATE, DECAY, EPSILON, BETA1, BETA2 = 0.05, 0.1, 1e-3, 0.9, 0.98
SHAPES = {"dense.weight": (4, 3), "dense.bias": (4,), "head.norm.weight": (3,), "other.weight": (2, 5)}


def written_out(weight: Array, gradients: list[Array], decay: float) -> tuple[Array, list[float]]:
    """Algorithm 2 of arXiv 2304.13013; also the RMS of each step."""
    v, u, found = np.zeros_like(weight), np.zeros_like(weight), []
    for t, g in enumerate(gradients, 1):
        beta1 = BETA1 * (1 - BETA1 ** (t - 1)) / (1 - BETA1**t)
        beta2 = BETA2 * (1 - BETA2 ** (t - 1)) / (1 - BETA2**t)
        v = beta1 * v + (1 - beta1) * g
        u = beta2 * u + (1 - beta2) * g * g
        found.append(math.sqrt(np.mean(g * g / np.maximum(u, EPSILON**2))))
        rate = RATE / max(1.0, found[-1])
        weight = weight - rate * decay * weight - rate * v / (np.sqrt(u) + EPSILON)
    return weight, found


def drawn(seed: int) -> tuple[dict[str, Array], dict[str, list[Array]]]:
    """Weights, and gradients that grow and shrink by orders of magnitude; some are below epsilon."""
    rng = np.random.default_rng(seed)
    sizes = [1e-4, 1.0, 30.0, 0.1, 1e-3, 5.0]
    weights = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    return weights, {
        name: [size * rng.normal(size=shape) for size in sizes] for name, shape in SHAPES.items()
    }


def test_it_is_the_papers_algorithm() -> None:
    weights, gradients = drawn(1)
    parameters = {name: Parameter(torch.tensor(value)) for name, value in weights.items()}
    stable = optim.optimizer(
        parameters, rate=RATE, weight_decay=DECAY, epsilon=EPSILON, beta2=BETA2, name="stable_adamw"
    )
    for step in range(6):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step])
        optim.set_rate(stable, RATE, step)
        stable.step()
    for name, parameter in parameters.items():
        decay = 0.0 if name in ("dense.bias", "head.norm.weight") else DECAY
        expected, rms = written_out(weights[name], gradients[name], decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12)
        assert min(rms) < 1 < max(rms)  # both cases of the maximum


def test_steady_gradients_are_those_of_adamw() -> None:
    """Where no gradient is larger than its second moment, nothing is clipped."""
    weights = {name: np.random.default_rng(2).normal(size=shape) for name, shape in SHAPES.items()}
    trained = []
    for name in ("adamw", "stable_adamw"):
        parameters = {key: Parameter(torch.tensor(value)) for key, value in weights.items()}
        adam = optim.optimizer(parameters, rate=RATE, weight_decay=DECAY, epsilon=1e-8, name=name)
        for step in range(4):
            for parameter in parameters.values():
                parameter.grad = torch.full_like(parameter, 1.0 / (1 + step))
            optim.set_rate(adam, RATE, step)
            adam.step()
        trained.append([p.detach() for p in parameters.values()])
    torch.testing.assert_close(*trained, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_a_clip_of_zero_leaves_gradients_alone(max_norm: float) -> None:
    weight = Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 3.0)
    assert optim.clip({"a": weight}, max_norm) == 6.0
    assert float(weight.grad.norm()) == pytest.approx(max_norm or 6.0, rel=1e-5)
