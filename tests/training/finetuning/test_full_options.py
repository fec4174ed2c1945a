"""Options of full fine-tuning: rates by layer, frozen words, averaged weights, two readings of a batch."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from bert.bodies.body import EMBEDDING
from bert.checkpoint.weights import read_checkpoint, read_weights
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.encoder import has_last_norm
from bert.nn.heads import BertForMaskedLM
from training.engine.device import StepNumbers
from training.engine.state import gather_state
from training.engine.train_loop import StepData, TrainLoop
from training.finetune import finetune
from training.finetuning.loop import TaskObjective, rate_factors
from training.finetuning.trainer import FinetuneTrainer
from training.settings import FinetuneSettings
from training.tasks.base import FeatureBatch

Make = Callable[..., FinetuneSettings]


def test_rates_fall_from_the_head_to_the_embeddings() -> None:
    names = {
        "trained.classifier.weight": 0,
        "trained.bert.pooler.dense.bias": 0,
        "trained.bert.encoder.layer.2.output.dense.weight": 1,
        "trained.base_model.model.bert.encoder.layer.1.output.dense.lora_A.default.weight": 2,
        "trained.bert.encoder.layer.0.attention.self.query.bias": 3,
        "trained.bert.embeddings.LayerNorm.weight": 4,
    }
    assert rate_factors(names, 0.8) == {name: pytest.approx(0.8**power) for name, power in names.items()}
    assert set(rate_factors(names, 1.0).values()) == {1.0}
    changed = {name: factor for name, factor in rate_factors(names, 1.0, head=5.0).items() if factor != 1.0}
    assert changed == {"trained.classifier.weight": 5.0}


def test_a_norm_after_the_last_layer_is_next_to_the_head() -> None:
    layer, norm = "bert.encoder.layer.0.output.dense.weight", "bert.encoder.LayerNorm.weight"
    assert rate_factors([layer, norm], 0.5, has_last_norm=True) == {layer: 0.5, norm: 1.0}
    distances = "bert.encoder.rel_embeddings.weight"  # DeBERTa's norm is theirs
    assert rate_factors([layer, norm, distances], 0.5) == {layer: 0.5, norm: 0.25, distances: 0.25}


def test_a_body_says_whether_a_norm_is_the_last() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    configs = {name: BertConfig.from_dict({"model_type": name, "vocab_size": 9, "pad_token_id": 0, **sizes})
               for name in ("bert", "modernbert", "deberta-v2")}  # fmt: skip
    found = {name: has_last_norm(BertForMaskedLM(config)) for name, config in configs.items()}
    assert found == {"bert": False, "modernbert": True, "deberta-v2": False}


def test_steps_are_as_long_as_the_rates_say(settings_for: Make, tiny_base: Path) -> None:
    """The first step of Adam is as long as the rate, whatever the gradient."""
    best = finetune(
        settings_for("classification", max_steps=1, layer_decay=0.5, weight_decay=0.0, warmup_ratio=0.0)
    )
    before, after = read_weights(tiny_base), read_checkpoint(best).weights
    for part, power in (("encoder.layer.1", 1), ("encoder.layer.0", 2), ("embeddings", 3)):
        name = f"bert.{part}.{'' if part == 'embeddings' else 'output.'}LayerNorm.weight"
        longest = float(np.abs(after[name] - before[name]).max())
        assert longest == pytest.approx(1e-3 * 0.5**power, rel=0.01)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_head_has_a_rate_of_its_own(settings_for: Make, lora: dict[str, int] | None) -> None:
    """The first step of Adam takes the rate off a bias of 0."""
    options = {"max_steps": 1, "warmup_ratio": 0.0, "weight_decay": 0.0, "lora": lora}
    best = finetune(settings_for("classification", head_learning_rate=5e-3, **options))
    head = load_file(best / ("adapter_model.safetensors" if lora else "model.safetensors"))
    bias = next(tensor for name, tensor in head.items() if name.endswith("classifier.bias"))
    assert bias.abs().tolist() == pytest.approx([5e-3] * len(bias), rel=0.01)


def test_frozen_words_stay_and_the_rest_learns(settings_for: Make, tiny_base: Path) -> None:
    settings = settings_for("classification", max_steps=2, freeze_embeddings=True)
    before, after = read_weights(tiny_base), read_checkpoint(finetune(settings)).weights
    changed = {name for name, tensor in before.items() if not np.array_equal(tensor, after.get(name, tensor))}
    assert EMBEDDING not in changed and "bert.embeddings.position_embeddings.weight" in changed
    saved = load_file(settings.output_dir / "checkpoints/step-00000002/optimizer.safetensors")
    assert saved and not [name for name in saved if "word_embeddings" in name]


class Followed:
    """The weights of a run after each step, and an average of them that is computed one by one."""

    def __init__(self, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.average: dict[str, torch.Tensor] = {}
        self.last: dict[str, torch.Tensor] = {}
        self.steps, real = 0, TrainLoop.step

        def step(loop: TrainLoop, data: StepData) -> StepNumbers:
            numbers, ramp = real(loop, data), (1 + self.steps) / (10 + self.steps)
            self.last = gather_state(loop.objective, loop.optimizer)[0]
            kept = min(decay, ramp)
            self.average = {
                name: kept * self.average.get(name, weight) + (1 - kept) * weight
                for name, weight in self.last.items()
            }
            self.steps += 1
            return numbers

        monkeypatch.setattr(TrainLoop, "step", step)


def test_the_best_checkpoint_has_the_averaged_weights(
    settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(0.6, monkeypatch)
    settings = settings_for("classification", epochs=2, ema=0.6, eval_every_steps=5, metric="f1_macro")
    monkeypatch.setattr("training.finetuning.trainer.is_better", lambda *_: True)  # the last is the best
    best = load_file(finetune(settings) / "model.safetensors")
    assert followed.steps == 16
    for name, weight in best.items():
        torch.testing.assert_close(weight, followed.average[f"trained.{name}"], rtol=0, atol=1e-6)
    assert not torch.equal(best["classifier.weight"], followed.last["trained.classifier.weight"])
    # Training itself goes on with its own weights: evaluations between steps leave no trace.
    saved = load_file(settings.output_dir / "checkpoints/step-00000016/weights.safetensors")
    assert all(torch.equal(weight, followed.last[name]) for name, weight in saved.items())


@pytest.mark.parametrize(
    ("options", "stop"),
    [({"ema": 0.9, "r_drop": 0.5}, 8), ({"layer_decay": 0.8, "freeze_embeddings": True}, 3)],
)
def test_a_stopped_run_ends_with_the_same_weights(
    options: dict[str, Any], stop: int, settings_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {"epochs": 2, "save_every_steps": 1, "dropout": 0.1, **options}
    straight = finetune(settings_for("classification", **values, output_dir=tmp_path / "straight"))

    def killed(run: FinetuneTrainer, numbers: StepNumbers) -> None:
        real(run, numbers)
        if run.loop.state.step > stop:
            raise KeyboardInterrupt

    real = FinetuneTrainer.on_step
    settings = settings_for("classification", **values)
    with monkeypatch.context() as patch:
        patch.setattr(FinetuneTrainer, "on_step", killed)
        with pytest.raises(KeyboardInterrupt):
            finetune(settings)
    again, expected = (load_file(folder / "model.safetensors") for folder in (finetune(settings), straight))
    assert all(torch.equal(again[name], weight) for name, weight in expected.items())


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    """Return KL(P || Q) of two distributions, term by term."""
    pairs = zip(p.tolist(), q.tolist(), strict=True)
    return math.fsum(a * math.log(a / b) for a, b in pairs)


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_r_drop_is_the_papers_formula(task: str, begin: Callable[..., FinetuneTrainer]) -> None:
    loop = begin(task, dropout=0.3, r_drop=0.7).loop
    part: FeatureBatch = loop.data.next(loop.state).parts[0]
    objective = loop.objective
    assert isinstance(objective, TaskObjective) and objective.r_drop == 0.7
    objective.train()
    torch.manual_seed(5)
    found = objective(part)["loss"]
    torch.manual_seed(5)
    with torch.no_grad():
        first, second = (
            objective.trained(part.input_ids, part.segment_ids, part.attention_mask) for _ in range(2)
        )
    targets = [np.atleast_1d(target) for target in part.targets]
    total = count = 0.0
    for row, labels in enumerate(targets):
        for place, label in enumerate(labels):
            if label < 0:
                continue
            a, b = (x[row] if task == "classification" else x[row, place] for x in (first, second))
            p, q = F.softmax(a, -1), F.softmax(b, -1)
            total += -(math.log(p[label]) + math.log(q[label])) / 2 + 0.7 * (kl(p, q) + kl(q, p)) / 2
            count += 1
    assert found.targets == count
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-4)


def test_several_labels_are_compared_each_by_itself() -> None:
    from bert.tasks.spec import TaskSpec
    from tests.support.tiny import tiny_tokenizer
    from training.tasks.sequence import SequenceFinetuning

    task = SequenceFinetuning(
        tiny_tokenizer(), TaskSpec("classification", ("a", "b", "c"), problem_type="multi_label")
    )
    batch: Any = type("Batch", (), {"weights": torch.tensor([1.0, 2.0])})
    first, second = torch.randn(2, 3), torch.randn(2, 3)
    total = 0.0
    for row, weight in enumerate((1.0, 2.0)):
        for x, y in zip(first[row], second[row], strict=True):
            p, q = (torch.stack([torch.sigmoid(z), torch.sigmoid(-z)]) for z in (x, y))
            total += weight * (kl(p, q) + kl(q, p)) / 2
    assert float(task.disagreement(first, second, batch)) == pytest.approx(total, rel=1e-5)


def test_r_drop_without_dropout_is_refused(settings_for: Make) -> None:
    with pytest.raises(ConfigError, match="all dropout is 0"):
        finetune(settings_for("classification", r_drop=1.0))


def test_r_drop_takes_the_dropout_of_an_adapter_for_dropout(settings_for: Make) -> None:
    finetune(settings_for("ner", r_drop=1.0, lora={"rank": 2, "dropout": 0.1}, max_steps=1))


@pytest.mark.parametrize(
    ("task", "changes", "reason"),
    [
        ("classification", {"freeze_embeddings": True, "lora": {}}, "not for lora"),
        ("ner", {"freeze_embeddings": True, "base": "random:x"}, "not for base 'random:x'"),
        ("similarity", {"head_learning_rate": 1e-3}, "similarity has none"),
        ("qa", {"r_drop": 1.0}, "this is 'qa'"),
        ("classification", {"r_drop": 1.0, "problem": "regression"}, "this is 'regression'"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(
    task: str, changes: dict[str, Any], reason: str, settings_for: Make
) -> None:
    with pytest.raises(ValueError, match=reason):
        settings_for(task, **changes)
