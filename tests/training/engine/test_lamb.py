"""LAMB against algorithm 2 of its paper, written out in numpy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import Parameter

from training.engine import optim

Array = NDArray[np.float64]
RATE, DECAY, EPSILON, BETA1, BETA2 = 0.05, 0.1, 1e-6, 0.9, 0.99


def written_out(
    weight: Array, gradients: list[Array], *, excluded: bool = False, bias_correction: bool = False
) -> Array:
    """Algorithm 2 of arXiv 1904.00962, version 3; `excluded` as in google-research/albert, without bias correction."""
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for step, g in enumerate(gradients, 1):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        m_hat = m / (1 - BETA1**step) if bias_correction else m
        v_hat = v / (1 - BETA2**step) if bias_correction else v
        update = m_hat / (np.sqrt(v_hat) + EPSILON) + (0.0 if excluded else DECAY) * weight
        lengths = np.linalg.norm(weight), np.linalg.norm(update)
        ratio = lengths[0] / lengths[1] if not excluded and min(lengths) > 0 else 1.0
        weight = weight - RATE * ratio * update
    return weight


def trained(
    weights: dict[str, Array], gradients: dict[str, list[Array]], bias_correction: bool = False
) -> dict[str, Array]:
    parameters = {name: Parameter(torch.tensor(value)) for name, value in weights.items()}
    lamb = optim.optimizer(
        parameters, rate=RATE, weight_decay=DECAY, epsilon=EPSILON, beta2=BETA2, name="lamb"
    )
    for step in range(5):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name][step])
        optim.set_rate(lamb, RATE, step, bias_correction=bias_correction)
        lamb.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize("bias_correction", [False, True])
def test_it_is_the_papers_algorithm(bias_correction: bool) -> None:
    rng = np.random.default_rng(1)
    shapes = {"dense.weight": (4, 3), "dense.bias": (4,), "LayerNorm.weight": (3,), "other.weight": (2, 5)}
    weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = {name: [rng.normal(size=shape) for _ in range(5)] for name, shape in shapes.items()}
    for name, found in trained(weights, gradients, bias_correction).items():
        excluded = name in ("dense.bias", "LayerNorm.weight")
        expected = written_out(
            weights[name], gradients[name], excluded=excluded, bias_correction=bias_correction
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_tensor_of_zeros_takes_the_step_of_adam() -> None:
    rng = np.random.default_rng(2)
    gradients = [rng.normal(size=(3, 3)) for _ in range(5)]
    found = trained({"a.weight": np.zeros((3, 3))}, {"a.weight": gradients})["a.weight"]
    np.testing.assert_allclose(found, written_out(np.zeros((3, 3)), gradients), rtol=1e-12)
    still = [np.zeros((3, 3))] * 5
    assert not trained({"a.weight": np.zeros((3, 3))}, {"a.weight": still})["a.weight"].any()


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    parameters = {"a.weight": Parameter(torch.ones(2)), "b.weight": Parameter(torch.ones(2))}
    lamb = optim.optimizer(parameters, rate=RATE, weight_decay=DECAY, epsilon=EPSILON, name="lamb")
    parameters["a.weight"].grad = torch.ones(2)
    lamb.step()
    assert parameters["a.weight"][0] != 1 and parameters["b.weight"].tolist() == [1, 1]
