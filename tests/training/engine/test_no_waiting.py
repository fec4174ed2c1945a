"""A step reads nothing back from the device.

On the meta device there is nothing to read: whatever would wait for a GPU fails there.
"""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.every_objective import MAKERS, make
from tests.support.objectives import batch, config
from tests.support.varlen import take_the_kernel
from training.engine import device, optim
from training.engine.distributed import Processes
from training.engine.train_loop import StepData, TrainLoop
from training.pretraining.data import Batches
from training.pretraining.objectives.base import Objective
from training.pretraining.objectives.language_models import MaskedLanguageModel
from training.pretraining.plan import Plan
from training.pretraining.settings import PretrainSettings
from training.pretraining.trainer import make_loop

META = torch.device("meta")


class NothingSent(TorchDispatchMode):
    """Refuses copies to the device, for which the host waits too."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = [each for each in arguments if isinstance(each, Tensor)]
        result = function(*arguments, **(options or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            devices = {each.device.type for each in [*given, result]}
            assert devices != {"cpu", "meta"}, f"{function} sends {[each.shape for each in given]}"
        return result


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Keep the numbers of each step where they are."""
    left: list[Tensor] = []

    def keep(measured: Tensor) -> Tensor:
        left.append(measured)
        return measured

    monkeypatch.setattr(device, "to_host", keep)
    # This device has no autocast, no operators over lists of tensors, and no fused AdamW.
    monkeypatch.setitem(optim._OPTIMIZERS, "adamw", torch.optim.AdamW)
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda given, most, **_: clip(given, most))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    yield left


def loop_on_meta(objective: Objective, **values: Any) -> TrainLoop:
    settings = PretrainSettings(corpus=Path("unused"), output_dir=Path("unused"), max_steps=9, **values)
    data = cast(Batches, Namespace(plan=Plan(settings)))
    return make_loop(settings, objective, data, Processes(0, 1, META))


def take_steps(loop: TrainLoop, vocab_size: int, packed: bool) -> None:
    parts = [batch(seed, vocab_size, [9, 24, 5, 7], packed).to(META) for seed in range(2)]
    loop.step(StepData(parts, 90, 8, {}))  # makes the optimiser's moments, and sends a teacher
    with NothingSent():
        loop.step(StepData(parts, 90, 8, {}))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("name", "kernel", "packed"),
    [
        *((name, both, both) for name in MAKERS for both in (False, True)),
        ("mlm", True, False),
        ("mlm", False, True),
    ],
)
def test_no_objective_waits_for_the_device(
    name: str, kernel: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel:
        take_the_kernel(monkeypatch)
    objective = make(name)
    take_steps(loop_on_meta(objective), objective.model.config.vocab_size, packed)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "deberta-v2", "pos_att_type": ("c2p", "p2c"), "position_buckets": 4},
        {"model_type": "mpnet"},
    ],
)
def test_tables_of_distances_are_sent_once(changes: dict[str, Any]) -> None:
    objective = MaskedLanguageModel(config(0, **changes))
    take_steps(loop_on_meta(objective), objective.model.config.vocab_size, packed=True)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("optimizer", ["lamb", "stable_adamw"])
def test_no_optimiser_waits_for_the_device(optimizer: str) -> None:
    objective = make("mlm")
    loop = loop_on_meta(objective, optimizer=optimizer)
    take_steps(loop, objective.model.config.vocab_size, packed=True)


def test_a_number_that_is_read_is_found() -> None:
    objective = make("mlm").to(META)
    loss = objective(batch(0, objective.model.config.vocab_size, [9]).to(META))["mlm"]
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        float(loss.total)
    with pytest.raises(AssertionError, match="sends"), NothingSent():
        torch.ones(3).to(META)
