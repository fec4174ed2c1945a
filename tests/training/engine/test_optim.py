"""AdamW as the published codes have it, update for update."""

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from training.engine import optim

RATE, DECAY, EPSILON = 0.1, 0.3, 1e-6


def stepped(names: list[str], *, decay_all: bool) -> dict[str, float]:
    """Take a step from weights of 2 without a gradient: only the decay moves them."""
    parameters = {name: Parameter(torch.full((3,), 2.0)) for name in names}
    adam = optim.optimizer(parameters, rate=RATE, weight_decay=DECAY, epsilon=EPSILON, decay_all=decay_all)
    for parameter in parameters.values():
        parameter.grad = torch.zeros(3)
    optim.set_rate(adam, RATE, 0)
    adam.step()
    return {name: float(parameter.detach()[0]) for name, parameter in parameters.items()}


def test_biases_and_norms_decay_only_where_all_does() -> None:
    names = ["dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias"]
    shrunk = pytest.approx(2.0 * (1 - RATE * DECAY))
    assert stepped(names, decay_all=False) == dict.fromkeys(names, 2.0) | {"dense.weight": shrunk}
    assert stepped(names, decay_all=True) == dict.fromkeys(names, shrunk)


def test_without_correction_the_updates_are_googles() -> None:
    """`AdamWeightDecayOptimizer.apply_gradients` of google-research/bert."""
    rng = np.random.default_rng(0)
    weight = m = v = np.zeros(4)
    weight = rng.normal(size=4)
    parameter = Parameter(torch.tensor(weight))
    adam = optim.optimizer({"dense.weight": parameter}, rate=RATE, weight_decay=DECAY, epsilon=EPSILON)
    for step, gradient in enumerate(rng.normal(size=(6, 4))):
        parameter.grad = torch.tensor(gradient)
        optim.set_rate(adam, RATE, step, bias_correction=False)
        adam.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        weight = weight - RATE * (m / (np.sqrt(v) + EPSILON) + DECAY * weight)
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-12)


def test_a_rate_of_zero_moves_no_weight_and_keeps_the_moments() -> None:
    """Google's schedule begins with it."""
    parameter = Parameter(torch.ones(3))
    adam = optim.optimizer({"dense.weight": parameter}, rate=RATE, weight_decay=DECAY, epsilon=EPSILON)
    for step, correction in enumerate((True, False)):
        parameter.grad = torch.ones(3)
        optim.set_rate(adam, 0.0, step, bias_correction=correction)
        adam.step()
    assert parameter.detach().tolist() == [1.0] * 3
    assert adam.state[parameter]["exp_avg"].tolist() == pytest.approx([0.19] * 3)
