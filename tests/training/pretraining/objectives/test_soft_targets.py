"""Soft targets in slices against those computed at once."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bert.nn import losses
from tests.support.bert_reference import assert_same
from training.pretraining.objectives import distillation
from training.pretraining.objectives.distillation import Decoded

POSITIONS, WIDTH, PIECES = 23, 8, 40


def decoded(seed: int, width: int = WIDTH, bias: bool = True) -> Decoded:
    drawn = torch.Generator().manual_seed(seed)
    states, weight, vector = (
        torch.randn(shape, generator=drawn, requires_grad=True)
        for shape in ((POSITIONS, width), (PIECES, width), (PIECES,))
    )
    return Decoded(states, weight, vector if bias else None)


def logits(of: Decoded) -> Tensor:
    return torch.nn.functional.linear(*of)


def gradients(loss: Tensor, of: Decoded) -> list[Tensor]:
    (3.0 * loss).backward()
    return [each.grad for each in of if each is not None and each.grad is not None]


@pytest.mark.parametrize("rows", [1, 7, POSITIONS, 1000])
@pytest.mark.parametrize("bias", [True, False])
def test_slices_have_the_loss_and_gradients_of_the_whole(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "SLICE_LOGITS", rows * PIECES)
    ours, whole, theirs = decoded(1, bias=bias), decoded(1, bias=bias), decoded(2, width=5)
    found = distillation.soft_targets(ours, theirs, 2.0)
    expected = losses.soft_targets(logits(whole), logits(theirs).detach(), 2.0).total
    assert_same(found.detach(), expected.detach(), atol=1e-4)
    for mine, wanted in zip(gradients(found, ours), gradients(expected, whole), strict=True):
        assert_same(mine, wanted, atol=1e-4)
    assert theirs.states.grad is None and theirs.weight.grad is None


def test_half_precision_is_close_and_leaves_whole_gradients() -> None:
    ours, whole, theirs = decoded(1), decoded(1), decoded(2)
    with torch.autocast("cpu", torch.bfloat16):
        found = distillation.soft_targets(ours, theirs, 2.0)
    rough, exact = gradients(found, ours), gradients(distillation.soft_targets(whole, theirs, 2.0), whole)
    for mine, wanted in zip(rough, exact, strict=True):
        assert mine.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(mine.flatten(), wanted.flatten(), dim=0) > 0.99


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, made.numel() if isinstance(made, Tensor) else 0)
        return made


def test_no_more_logits_than_a_slice_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "SLICE_LOGITS", 9 * PIECES)
    ours, theirs = decoded(1), decoded(2)
    with Largest() as largest:
        distillation.soft_targets(ours, theirs, 2.0).backward()
    assert largest.numbers == 9 * PIECES < POSITIONS * PIECES
