"""Losses of embeddings against their formulas, written out in numpy."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert.nn.losses import cosent, ranking, triplet

SCALE = 20.0


def unit(*shape: int, seed: int) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(drawn, dim=-1)


def test_cosent_sums_over_all_two_pairs_in_the_wrong_order() -> None:
    cosines, scores = np.array([0.9, 0.2, 0.5, 0.5]), np.array([1.0, 4.0, 0.0, 4.0])
    total = 1.0
    for low in range(4):
        for high in range(4):
            if scores[low] < scores[high]:
                total += math.exp(SCALE * (cosines[low] - cosines[high]))
    loss = cosent(torch.tensor(cosines), torch.tensor(scores), SCALE)
    assert loss.targets == 4
    assert loss.mean.item() == pytest.approx(math.log(total))


def test_cosent_of_equal_scores_is_nothing_to_learn() -> None:
    cosines = torch.tensor([0.9, 0.1], requires_grad=True)
    loss = cosent(cosines, torch.ones(2), SCALE)
    loss.total.backward()
    assert loss.total.item() == 0
    assert cosines.grad is not None and not cosines.grad.any()


def test_cosent_and_its_gradient_stay_finite_at_the_worst_order() -> None:
    cosines = torch.tensor([1.0, -1.0], requires_grad=True)
    loss = cosent(cosines, torch.tensor([0.0, 5.0]), scale=1000.0)
    loss.total.backward()
    assert loss.mean.item() == pytest.approx(2000.0)
    assert cosines.grad is not None and cosines.grad.isfinite().all()


def test_ranking_is_the_cross_entropy_of_the_own_candidate() -> None:
    anchors, candidates = unit(3, 8, seed=1), unit(5, 8, seed=2)
    false = np.zeros((3, 5), bool)
    false[0, 2] = false[1, 4] = True
    expected = 0.0
    for row in range(3):
        cosines = anchors[row].numpy() @ candidates.numpy().T
        others = [math.exp(SCALE * cosines[c]) for c in range(5) if not false[row, c]]
        expected -= math.log(math.exp(SCALE * cosines[row]) / sum(others))
    loss = ranking(anchors, candidates, torch.from_numpy(false), SCALE)
    assert loss.targets == 3
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)  # cross entropy is in float32


def test_a_false_negative_has_no_gradient() -> None:
    anchors, candidates = unit(2, 4, seed=1), unit(2, 4, seed=2).requires_grad_()
    false = torch.tensor([[False, True], [False, False]])
    ranking(anchors[:1], candidates, false[:1], SCALE).total.backward()
    assert candidates.grad is not None and candidates.grad.isfinite().all()
    assert not candidates.grad.any(), "an anchor alone with its positive has nothing to choose from"


def test_triplet_is_what_lacks_of_the_margin() -> None:
    anchors, positives, negatives = (unit(6, 4, seed=seed) for seed in (1, 2, 3))
    near, far = (np.sum(anchors.numpy() * other.numpy(), -1) for other in (positives, negatives))
    loss = triplet(anchors, positives, negatives, 0.2)
    assert loss.targets == 6
    assert loss.total.item() == pytest.approx(
        sum(max(0.0, 0.2 + f - n) for n, f in zip(near, far, strict=True))
    )
