"""Losses are sums with a count: parts add up to the whole, and what is ignored counts nowhere."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert.nn import losses
from bert.nn.losses import IGNORED, Loss


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(cut=st.integers(0, 12), seed=st.integers(0, 99))
def test_two_parts_of_a_batch_add_up_to_the_whole(cut: int, seed: int) -> None:
    logits = random(12, 5, seed=seed)
    targets = torch.randint(0, 5, (12,), generator=torch.Generator().manual_seed(seed))
    targets[::3] = IGNORED
    whole = losses.cross_entropy(logits, targets)
    parts = [
        losses.cross_entropy(logits[:cut], targets[:cut]),
        losses.cross_entropy(logits[cut:], targets[cut:]),
    ]
    assert sum(part.targets for part in parts) == whole.targets == 8
    torch.testing.assert_close(sum(part.total for part in parts) / whole.targets, whole.mean)


def test_a_batch_without_a_target_gives_zero_and_no_gradient() -> None:
    logits = random(3, 4).requires_grad_()
    loss = losses.cross_entropy(logits, torch.full((3,), IGNORED))
    loss.mean.backward()
    assert (float(loss.mean.detach()), loss.targets) == (0.0, 0)
    assert logits.grad is not None and not logits.grad.any()


def test_cross_entropy_is_minus_the_log_of_the_probability() -> None:
    loss = losses.cross_entropy(torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0]))
    torch.testing.assert_close(loss.total, torch.tensor(-math.log(0.75)))


def test_half_precision_logits_are_summed_in_float32() -> None:
    loss = losses.cross_entropy(random(4, 3).bfloat16(), torch.tensor([0, 1, 2, 0]))
    assert loss.total.dtype == torch.float32


def test_counts_are_of_numbers_compared() -> None:
    assert losses.multi_label(random(4, 3), torch.ones(4, 3)).targets == 12
    assert losses.regression(random(4, 1), torch.ones(4)).targets == 4
    assert losses.spans(random(4, 6, 2), torch.zeros(4).long(), torch.ones(4).long()).targets == 4
    assert losses.multiple_choice(random(8, 1), torch.tensor([0, 1])).targets == 2


def test_spans_are_chosen_among_the_allowed_positions() -> None:
    logits, starts, ends = random(2, 6, 2), torch.tensor([1, 0]), torch.tensor([4, 2])
    allowed = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1]]).bool()
    total = 0.0
    for row in range(2):
        for column, target in ((0, starts[row]), (1, ends[row])):
            scores = logits[row, :, column]
            total -= float(scores[target] - scores[allowed[row]].logsumexp(0)) / 2
    torch.testing.assert_close(losses.spans(logits, starts, ends, allowed).total, torch.tensor(total))


def test_the_mean_is_over_targets() -> None:
    assert float(Loss(torch.tensor(6.0), 4).mean) == 1.5


def test_a_teachers_loss_is_the_divergence_at_the_temperature_times_its_square() -> None:
    # At temperature 2 the teacher says 3/4 and 1/4, the student 1/2 and 1/2.
    teacher, student = torch.tensor([[2 * math.log(3.0), 0.0]]), torch.zeros(1, 2)
    expected = 4 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    loss = losses.soft_targets(student, teacher, 2.0)
    assert float(loss.total) == pytest.approx(expected, rel=1e-6)
    assert loss.targets == 1


def test_a_student_that_says_what_its_teacher_says_has_no_loss() -> None:
    logits = random(4, 3, 5)
    loss = losses.soft_targets(logits + 7, logits, 3.0)
    assert float(loss.total) == pytest.approx(0, abs=1e-4)
    assert loss.targets == 12


def test_alpha_is_the_teachers_share() -> None:
    mixed = losses.blend(Loss(torch.tensor(2.0), 4), Loss(torch.tensor(10.0), 4), 0.25)
    assert (float(mixed.total), mixed.targets) == (8.0, 4)
